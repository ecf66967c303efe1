"""Time limits whose clocks stand still while an act waits for its turn."""

from __future__ import annotations

import asyncio

import pytest

from verl_mas.workflow.clock import Clock, ended, start, uncounted


def run(work, seconds):
    async def main():
        clock = Clock(seconds)
        task = start(work(), clock)
        in_time = await ended(task, clock)
        return in_time, task

    return asyncio.run(main())


async def wait(seconds):
    with uncounted():
        await asyncio.sleep(seconds)


def test_waiting_for_a_turn_takes_none_of_the_time_of_an_act():
    async def act():
        await asyncio.gather(wait(0.08), wait(0.04))
        await asyncio.sleep(0.005)
        return "reply"

    in_time, task = run(act, 0.04)
    assert in_time and task.result() == "reply"


def test_work_after_the_wait_has_only_the_time_that_was_left():
    async def act():
        await asyncio.sleep(0.03)
        await wait(0.05)
        await asyncio.sleep(60)

    in_time, task = run(act, 0.05)
    assert not in_time and task.cancelled()


def test_an_act_whose_caller_is_cancelled_is_cancelled_with_it():
    async def main():
        clock = Clock(60)
        act = start(asyncio.sleep(60), clock)
        caller = asyncio.ensure_future(ended(act, clock))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert act.cancelled()

    asyncio.run(main())


def test_outside_an_act_there_is_no_clock_to_stop():
    asyncio.run(wait(0))
