import os
import signal
import time

import psutil
import pytest

from verl_mas.environment.grading.process_pool import CRASHED, TIMED_OUT, BoundedPool

# `os.readlink` of this path returns the process id of the worker.
WORKER = "/proc/self"


@pytest.fixture
def pool_of():
    pools = []

    def make(function: str, **options):
        pools.append(BoundedPool(function, **{"workers": 1, "limit_s": 5.0, **options}))
        return lambda *args: pools[-1].submit(*args).result()

    yield make
    for pool in pools:
        pool.close()


def test_an_exception_is_a_result_and_keeps_the_worker_whose_output_goes_nowhere(pool_of):
    call = pool_of("os:readlink")
    worker = call(WORKER)
    assert call("/nowhere") == CRASHED and call(WORKER) == worker
    assert call("/proc/self/fd/1") == os.devnull


def test_c_code_that_hangs_costs_the_limit_and_the_next_call_works(pool_of):
    call = pool_of("re:sub", limit_s=1.0)
    assert call("a", "b", "aa") == "bb"
    started = time.monotonic()
    assert call("(a+)+$", "", "a" * 60 + "b") == TIMED_OUT
    assert time.monotonic() - started < 2 and call("a", "b", "aa") == "bb"


@pytest.mark.parametrize(("function", "args"), [("os:_exit", [1]), ("operator:mul", ["x", 2**30])])
def test_a_worker_that_dies_or_needs_too_much_memory_is_a_result_each_time(pool_of, function, args):
    call = pool_of(function, memory_mb=256)
    assert [call(*args) for _ in range(2)] == [CRASHED] * 2


def test_a_lost_fork_server_is_restarted(pool_of):
    call = pool_of("os:readlink")
    worker = psutil.Process(int(call(WORKER)))
    server = worker.ppid()
    os.kill(server, signal.SIGKILL)
    worker.wait(5)
    assert call(WORKER) == CRASHED
    assert psutil.Process(int(call(WORKER))).ppid() != server


def test_closing_ends_every_process():
    pool = BoundedPool("os:readlink")
    worker = psutil.Process(int(pool.submit(WORKER).result()))
    family = [worker.parent(), worker]
    pool.close()
    assert psutil.wait_procs(family, timeout=5)[1] == []
