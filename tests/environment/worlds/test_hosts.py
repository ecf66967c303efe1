"""Where worlds run: they are kept warm, and one that hangs, dies or raises is a fault of its session alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import psutil
import pytest
from toy_worlds import TOY

from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hosts import Pool, Way
from verl_mas.errors import FaultKind, SessionFault

KINDS = ["thread", "process"]


def way(kind, limit_s=20.0):
    return Way(TOY, kind, limit_s)


async def played(pool, kind, name="turns", limit_s=20.0, steps=2):
    """The rewards of an episode in which everybody takes 3."""
    async with pool.stage(way(kind, limit_s)) as stages:
        place = await stages.open(Setup(name, options={"steps": steps}))
        while place.view.observations:
            place = await stages.step(place, dict.fromkeys(place.view.observations, "3"))
        return place.view.rewards


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_is_used_again(kind):
    async def twice():
        pool = Pool()
        before = threading.active_count()
        results = [await played(pool, kind) for _ in range(3)]
        assert threading.active_count() <= before + 1
        return results

    assert asyncio.run(twice()) == [{"left": 3.0, "right": 3.0}] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("raises", "toy_worlds.py:Count: step: KeyError: 'no such room'"),
        (
            "nonsense",
            "step: ValueError: nonsense gives rewards that are no finite numbers: {'left': nan}",
        ),
        ("hangs", "step took more than 0.2 s"),
        ("exits", "SystemExit"),
    ],
)
def test_a_failure_is_a_fault_of_its_session_and_the_next_one_plays(kind, name, cause):
    async def failed_and_next():
        pool = Pool()
        await played(pool, kind)
        with pytest.raises(SessionFault) as fault:
            await played(pool, kind, name, limit_s=0.2)
        return fault.value, await played(pool, kind)

    began = time.monotonic()
    fault, after = asyncio.run(failed_and_next())
    assert fault.kind is FaultKind.WORLD and fault.kind.worth_retrying and cause in str(fault)
    assert after == {"left": 3.0, "right": 3.0} and time.monotonic() - began < 30


def test_a_process_that_ends_is_named_with_its_code():
    async def died():
        pool = Pool()
        with pytest.raises(SessionFault, match=r"toy_worlds.py:Count: step: its process ended with 3"):
            await played(pool, "process", "dies")
        return await played(pool, "process")

    assert asyncio.run(died()) == {"left": 3.0, "right": 3.0}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("half", "step took more than 0.5 s"),
        ("long", "its process wrote an answer above 67,108,864 bytes"),
        ("code", "its answer has a posix.system, which is no data"),
    ],
)
def test_what_a_process_writes_neither_stops_the_loop_nor_runs_code(name, cause):
    async def beside():
        pool = Pool()
        await played(pool, "process")
        strange = asyncio.ensure_future(played(pool, "process", name, limit_s=0.5))
        began = time.monotonic()
        await played(pool, "thread")
        assert time.monotonic() - began < 0.4
        with pytest.raises(SessionFault, match=cause):
            await strange
        return await played(pool, "process")

    assert asyncio.run(beside()) == {"left": 3.0, "right": 3.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_session_leaves_its_host(kind):
    async def cancelled():
        pool = Pool()
        session = asyncio.ensure_future(played(pool, kind, "hangs"))
        await asyncio.sleep(0.2)
        session.cancel()
        with pytest.raises(asyncio.CancelledError):
            await session
        return await played(pool, kind)

    assert asyncio.run(cancelled()) == {"left": 3.0, "right": 3.0}


def test_a_process_in_which_a_world_hangs_ends_with_its_worker():
    worker = f"""
import asyncio
import subprocess
import sys
from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hosts import Pool, Way

async def hang():
    async with Pool().stage(Way({TOY!r}, "process", 600)) as stages:
        place = await stages.open(Setup("hangs"))
        print("open", flush=True)
        await stages.step(place, {{"left": "1"}})

asyncio.run(hang())
"""
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        (world,) = psutil.Process(process.pid).children()
        time.sleep(0.2)
        process.kill()
    world.wait(timeout=20)
