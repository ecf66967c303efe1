"""The longest time for which an event loop was late."""

import asyncio
import time

from verl_mas.rollout.lag import NO_LAG, Lag, Longest


async def test_what_blocks_the_loop_is_seen_until_it_is_asked_for():
    lag = Lag()
    assert lag.pop() == NO_LAG
    lag.begin()
    lag.begin()
    await asyncio.sleep(0.1)
    time.sleep(0.3)
    await asyncio.sleep(0.1)
    assert 0.2 < lag.pop() < 3
    time.sleep(0.1)
    await asyncio.sleep(0.1)
    assert lag.pop() == NO_LAG


def test_the_sum_over_workers_is_the_longest():
    assert sum([Longest(0.1), Longest(0.3), Longest(0.2)], NO_LAG) == 0.3
