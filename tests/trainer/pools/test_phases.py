import asyncio
import random

import pytest

from verl_mas.trainer.pools.phases import TimeSlices, sleep_methods


class Engines:
    """The engines of two policies. Only one policy may be awake, and a request to a sleeping engine is an error."""

    def __init__(self):
        self.awake, self.running, self.changes, self.served = "a", 0, 0, []
        self.slices = TimeSlices("a", self.change)

    async def change(self, old, new):
        assert self.awake == old and self.running == 0, "an engine went to sleep while it was serving"
        self.awake = None
        await asyncio.sleep(0)
        self.awake, self.changes = new, self.changes + 1

    async def request(self, policy, ticks=1):
        await self.slices.enter(policy)
        assert self.awake == policy, "a request reached a sleeping engine"
        self.running += 1
        for _ in range(ticks):
            await asyncio.sleep(0)
        self.running -= 1
        self.served.append(policy)
        await self.slices.leave()


def run(session):
    engines = Engines()
    asyncio.run(asyncio.wait_for(session(engines), timeout=20))
    return engines


@pytest.mark.parametrize(("policies", "most"), [("aaaaaa", 0), ("ababab", 10)])
def test_sessions_that_alternate_change_engines_once_per_time_slice_not_once_per_request(policies, most):
    async def one(engines):
        for policy in policies:
            await engines.request(policy)

    async def session(engines):
        await asyncio.gather(*[one(engines) for _ in range(50)])

    engines = run(session)
    assert len(engines.served) == 300 and engines.changes <= most


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_every_request_reaches_an_engine_that_is_awake(seed):
    rng = random.Random(seed)

    async def one(engines):
        for _ in range(rng.randint(1, 5)):
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            await engines.request(rng.choice("abc"), ticks=rng.randint(0, 4))

    async def session(engines):
        await asyncio.gather(*[one(engines) for _ in range(30)])

    run(session)


def test_a_busy_policy_does_not_starve_the_one_that_waits():
    async def session(engines):
        async def busy():
            while "b" not in engines.served:
                await engines.request("a", ticks=2)

        await asyncio.gather(*[busy() for _ in range(5)], engines.request("b"))

    assert "b" in run(session).served


def test_a_caller_cancelled_while_it_waits_does_not_hold_up_its_policy():
    async def session(engines):
        await engines.slices.enter("a")
        gone, there = (asyncio.create_task(engines.request("b")) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await engines.slices.leave()
        await there

    assert run(session).served == ["b"]


def test_the_engines_are_put_to_sleep_only_after_a_change_that_is_under_way():
    """If the last request of a rollout is cancelled while it waits, its policy still gets the time slice."""

    async def session(engines):
        await engines.slices.enter("a")
        gone = asyncio.create_task(engines.slices.enter("b"))
        await asyncio.sleep(0)
        gone.cancel()
        await engines.slices.leave()
        assert engines.slices.awake == "a", "the change has begun"
        assert await engines.slices.finally_awake() == engines.awake == "b"

    assert run(session).changes == 1


def test_engines_whose_sleep_drops_weights_are_paused_instead():
    assert sleep_methods("vllm") == sleep_methods("sglang") == ("pause", "unpause")
    assert sleep_methods("transformers") == ("sleep", "wake_up")
