from __future__ import annotations

import os
import signal
import time

import pytest

from verl_mas.environment.grading.process_pool import BoundedPool, CallStatus


@pytest.fixture
def pool_of():
    pools = []

    def make(function: str, **options) -> BoundedPool:
        pools.append(BoundedPool(function, **{"workers": 1, "limit_s": 5.0, **options}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_an_exception_is_data_and_the_worker_is_kept(pool_of):
    pool = pool_of("math:sqrt")
    result = pool.call(-1)
    assert result.status is CallStatus.RAISED and result.error.startswith("ValueError")
    assert pool.call(4).value == 2.0


def test_what_a_worker_prints_goes_nowhere(pool_of):
    assert pool_of("os:readlink").call("/proc/self/fd/1").value == os.devnull


def test_a_hanging_call_costs_its_limit_and_the_next_one_works(pool_of):
    pool = pool_of("time:sleep", limit_s=1.0)
    pool.call(0)
    started = time.monotonic()
    assert pool.call(60).status is CallStatus.TIMED_OUT
    assert time.monotonic() - started < 2
    assert pool.call(0).status is CallStatus.RETURNED


def test_a_crash_is_reported_and_the_next_call_works(pool_of):
    pool = pool_of("os:_exit")
    assert pool.call(1).status is CallStatus.CRASHED
    assert pool.call(1).status is CallStatus.CRASHED


def test_c_code_that_never_returns_to_the_interpreter_is_stopped(pool_of):
    pool = pool_of("operator:pow", limit_s=1.0)
    assert pool.call(9, 9**9).status is CallStatus.TIMED_OUT
    assert pool.call(2, 3).value == 8


def test_memory_is_bounded(pool_of):
    result = pool_of("operator:mul", memory_mb=256, limit_s=5).call("x", 2**30)
    assert result.status is CallStatus.RAISED and result.error.startswith("MemoryError")


def test_a_lost_fork_server_is_restarted(pool_of):
    pool = pool_of("os:getppid")
    server = pool.call().value
    os.kill(server, signal.SIGKILL)
    time.sleep(0.05)
    assert pool.call().status is CallStatus.CRASHED
    assert pool.call().value != server


def test_closing_ends_every_process(pool_of):
    pool = pool_of("os:getppid")
    server = pool.call().value
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
