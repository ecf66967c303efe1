"""The number of concurrent sessions is limited. Sessions start in order, and their clocks start with them."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from verl_mas.config.schema import FaultSpec
from verl_mas.rollout.worker import GroupFailed
from verl_mas.workflow import Outcome


@pytest.fixture
def playing(make):
    """Make the groups of a worker, and record their sessions. A session takes `ticks()` rounds of the event loop, and
    sessions of the task `failing` fail."""

    def playing(at_once, sizes, ticks=lambda: 1, failing=None):
        seen = SimpleNamespace(now=0, most=0, ran=[])

        async def ticked(task, team):
            seen.now += 1
            seen.most = max(seen.most, seen.now)
            try:
                for _ in range(ticks()):
                    await asyncio.sleep(0)
            finally:
                seen.now -= 1
            seen.ran.append((int(task.uid), task.session))
            if task.uid == failing:
                raise RuntimeError
            return Outcome(reward=0.0)

        it = make(ticked, at_once=at_once, faults=FaultSpec(then="fail_group", retries=0))
        it.worker.trajectories = None  # a session frees its place before it is recorded
        prompt = {"agent_name": "mas", "global_steps": 1, "extra_info": {}, "raw_prompt": []}
        prompts = [{**prompt, "uid": str(uid), "__rollout_n__": size} for uid, size in enumerate(sizes)]
        seen.worker, seen.groups = it.worker, [it.worker._run_group(each, validate=False) for each in prompts]  # noqa: SLF001

        async def main():
            return await asyncio.wait_for(asyncio.gather(*seen.groups, return_exceptions=True), timeout=20)

        seen.all = lambda: it.call(main())
        seen.call = it.call
        return seen

    return playing


@pytest.mark.parametrize("seed", range(8))
def test_never_more_than_the_limit_run_and_every_session_runs_once_in_the_order_of_tasks(playing, seed):
    chance = random.Random(seed)
    at_once, sizes = chance.randint(1, 9), [chance.randint(1, 12) for _ in range(chance.randint(1, 6))]
    sessions = [(uid, number) for uid, size in enumerate(sizes) for number in range(size)]
    varied = playing(at_once, sizes, ticks=lambda: chance.randint(1, 5))
    varied.all()
    assert varied.most == min(at_once, len(sessions)) and sorted(varied.ran) == sessions
    even = playing(at_once, sizes)
    even.all()
    assert even.ran == sessions


def test_a_group_that_is_dropped_leaves_its_places_in_the_queue_to_the_others(playing):
    it = playing(2, [50, 4], ticks=lambda: 3, failing="0")
    failed, _ = it.all()
    assert isinstance(failed, GroupFailed) and len([uid for uid, _ in it.ran if uid == 1]) == 4
    assert len([uid for uid, _ in it.ran if uid == 0]) <= 2, "the others of the group were still waiting"
    assert not it.worker.slots.locked()


def test_a_run_that_ends_takes_along_what_runs_and_what_waits(playing):
    it = playing(2, [9], ticks=lambda: 10**9)

    async def ends():
        group = asyncio.ensure_future(it.groups[0])
        while it.now < 2:
            await asyncio.sleep(0)
        group.cancel()
        await asyncio.wait({group})
        return it.now, it.worker.slots.locked(), len(asyncio.all_tasks())

    assert it.call(ends()) == (0, False, 1)
