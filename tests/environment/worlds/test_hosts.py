"""Hosts of worlds: a host is used again, and a world that hangs, dies or raises fails only its own session."""

import asyncio
import subprocess
import sys
import threading
import time

import psutil
import pytest
from toy_worlds import TOY

from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hosts import Pool
from verl_mas.errors import FaultKind, SessionFault

KINDS = ["thread", "process"]
BOTH = {"left": 3.0, "right": 3.0}  # the rewards of `played`


async def played(pool, kind, name="turns", limit_s=20.0, steps=2):
    """Return the rewards of an episode in which every player takes 3."""
    async with pool.stage(TOY, kind, limit_s) as stages:
        place = await stages.open(Setup(name, options={"steps": steps}))
        while place.view.observations:
            place = await stages.step(place, dict.fromkeys(place.view.observations, "3"))
        return place.view.rewards


@pytest.mark.parametrize("kind", KINDS)
async def test_a_host_is_used_again(kind):
    pool, before = Pool(), threading.active_count()
    assert [await played(pool, kind) for _ in range(3)] == [BOTH] * 3
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("raises", "toy_worlds.py:Count: step: KeyError: 'no such room'"),
        ("nonsense", "step: ValueError: nonsense gives rewards that are not finite numbers: {'left': nan}"),
        ("hangs", "step took more than 0.2 s"),
        ("exits", "SystemExit"),
    ],
)
async def test_a_failure_is_a_fault_of_its_session_and_the_next_one_plays(kind, name, cause):
    pool = Pool()
    await played(pool, kind)
    with pytest.raises(SessionFault) as fault:
        await asyncio.wait_for(played(pool, kind, name, limit_s=0.2), 30)
    assert fault.value.kind is FaultKind.WORLD and fault.value.kind.worth_retrying and cause in str(fault.value)
    assert await played(pool, kind) == BOTH


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("dies", r"toy_worlds.py:Count: step: its process ended with 3"),
        ("half", "step took more than 0.5 s"),
        ("long", "its process wrote an answer above 67,108,864 bytes"),
        ("code", "its answer has a posix.system, which is not data"),
    ],
)
async def test_a_process_that_ends_or_writes_nonsense_neither_stops_the_loop_nor_runs_code(name, cause):
    pool = Pool()
    await played(pool, "process")
    strange = asyncio.ensure_future(played(pool, "process", name, limit_s=0.5))
    began = time.monotonic()
    await played(pool, "thread")
    assert time.monotonic() - began < 0.4
    with pytest.raises(SessionFault, match=cause):
        await strange
    assert await played(pool, "process") == BOTH


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_session_leaves_its_host(kind):
    pool = Pool()
    session = asyncio.ensure_future(played(pool, kind, "hangs"))
    await asyncio.sleep(0.2)
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    assert await played(pool, kind) == BOTH


def test_a_process_in_which_a_world_hangs_ends_with_its_worker():
    worker = f"""
import asyncio
import subprocess
import sys
from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hosts import Pool

async def hang():
    async with Pool().stage({TOY!r}, "process", 600) as stages:
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
