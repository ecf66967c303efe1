"""A short form of benchmarks/sandbox.py: every program gets its verdict and leaves nothing behind.

The benchmark runs thousands of programs; these tests run only some.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
from pathlib import Path

import psutil
import pytest

from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.execution.executors.contained import Contained


@pytest.fixture
def sandbox(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    yield importlib.import_module("benchmarks.sandbox")
    sys.modules.pop("benchmarks.sandbox", None)


def test_programs_of_all_kinds_mixed_get_their_verdicts_and_leave_nothing(sandbox):
    programs = [*sandbox.HOSTILE, *sandbox.mixture(240, 0.02, random.Random(0))]

    async def run():
        executor = Contained(Execution())
        wrong = sandbox.wrong_verdicts(programs, await sandbox.run_all(executor, programs))
        before = sandbox.Held.now()
        wrong += sandbox.wrong_verdicts(programs, await sandbox.run_all(executor, programs))
        after = sandbox.Held.now()
        await executor.aclose()
        return wrong, before, after

    children = set(psutil.Process().children(recursive=True))
    wrong, before, after = asyncio.run(run())
    assert wrong == []
    assert (after.descriptors, after.processes) == (before.descriptors, before.processes)
    assert after.own_mb < before.own_mb + 10 and after.servers_mb < before.servers_mb + 10
    assert set(psutil.Process().children(recursive=True)) == children


def test_no_verdict_is_lost_or_changed_when_fork_servers_are_killed(sandbox):
    async def run():
        executor, others = Contained(Execution()), set(psutil.Process().children())
        ran = await sandbox.kill_servers(executor, 4, random.Random(0), others)
        await executor.aclose()
        return ran

    count, wrong = asyncio.run(run())
    assert count > 8 and wrong == []


def test_a_wrong_verdict_is_found(sandbox):
    known = sandbox.honest(0)
    assert known.wrong(sandbox.Result(sandbox.Status.OK, "0\n")) is None
    assert known.wrong(sandbox.Result(sandbox.Status.OK, "1\n")) and known.wrong(sandbox.Result(sandbox.Status.KILLED))
