from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

from verl_mas.grading.process_pool import BoundedPool, Fate


@pytest.fixture
def pool_of():
    pools = []

    def make(function: str, **options) -> BoundedPool:
        pools.append(BoundedPool(function, **{"workers": 1, "limit_s": 5.0, **options}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_a_result_comes_back(pool_of):
    assert pool_of("math:hypot").call(3, 4).value == 5.0


def test_an_exception_is_data_and_the_child_lives_on(pool_of):
    pool = pool_of("math:sqrt")
    called = pool.call(-1)
    assert called.fate is Fate.RAISED and called.error.startswith("ValueError")
    assert pool.call(4).value == 2.0


def test_a_hanging_call_costs_its_limit_and_the_next_one_works(pool_of):
    pool = pool_of("time:sleep", limit_s=1.0)
    pool.call(0)
    started = time.monotonic()
    assert pool.call(60).fate is Fate.TIMED_OUT
    assert time.monotonic() - started < 2
    assert pool.call(0).fate is Fate.RETURNED


def test_a_crash_is_reported_and_the_next_call_works(pool_of):
    pool = pool_of("os:_exit")
    assert pool.call(1).fate is Fate.CRASHED
    assert pool.call(1).fate is Fate.CRASHED


def test_c_code_that_never_returns_to_the_interpreter_is_stopped(pool_of):
    pool = pool_of("operator:pow", limit_s=1.0)
    assert pool.call(9, 9**9).fate is Fate.TIMED_OUT
    assert pool.call(2, 3).value == 8


def test_memory_is_bounded(pool_of):
    called = pool_of("operator:mul", memory_mb=256, limit_s=5).call("x", 2**30)
    assert called.fate is Fate.RAISED and called.error.startswith("MemoryError")


def test_many_concurrent_calls_are_all_answered(pool_of):
    pool = pool_of("time:sleep", workers=4, limit_s=1.0)

    async def run():
        return await asyncio.gather(*(pool.acall(60 if i % 25 == 0 else 0) for i in range(100)))

    fates = [called.fate for called in asyncio.run(run())]
    assert fates.count(Fate.TIMED_OUT) == 4 and fates.count(Fate.RETURNED) == 96


def test_the_loss_of_the_nursery_is_repaired(pool_of):
    pool = pool_of("os:getppid")
    nursery = pool.call().value
    os.killpg(nursery, signal.SIGKILL)
    time.sleep(0.05)
    assert pool.call().fate is Fate.CRASHED
    assert pool.call().value != nursery


def test_a_child_that_hangs_on_after_the_nursery_blocks_no_further_call(pool_of):
    pool = pool_of("time:sleep", limit_s=0.5)
    pool.call(0)
    nursery = pool._nursery._process.pid
    os.kill(nursery, signal.SIGKILL)
    assert pool.call(60).fate is Fate.TIMED_OUT
    called = pool.submit(0)
    try:
        assert called.result(timeout=20).fate is Fate.RETURNED
    finally:
        # Else the call, and with it this test, would wait for ever.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(nursery, signal.SIGKILL)


def test_closing_ends_every_process(pool_of):
    pool = pool_of("os:getppid")
    nursery = pool.call().value
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(nursery, 0)
