from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing

import pytest

from verl_mas.environment.execution.contained import probes
from verl_mas.environment.execution.contained.probes import PROBES, SandboxProbe, got_through
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.execution.executors.contained import Contained
from verl_mas.environment.execution.limits import Result, Status
from verl_mas.errors import ConfigError

# These probes are not run without a sandbox: the first would trace the tests, a kernel may lack x32, and the last would
# not end.
UNTRIED = ("trace a process", "call the kernel by the numbers of x32", "compute longer than allowed")


async def test_every_probe_is_refused():
    async with aclosing(Contained(Execution())) as executor:
        assert await got_through(executor) == []
    assert len(PROBES) == len({probe.name for probe in PROBES}) == 14


@pytest.mark.parametrize(
    "probe", [probe for probe in PROBES if probe.name not in UNTRIED], ids=lambda probe: probe.name
)
def test_a_probe_gets_through_where_nothing_contains_it(probe):
    read, write = os.pipe()
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", probe.program],
        capture_output=True, text=True, env={"A_SECRET": "x"}, pass_fds=[read],
    )  # fmt: skip
    os.close(read), os.close(write)
    assert not ran.stderr
    assert not probe.held(Result(Status.OK, ran.stdout))


@pytest.mark.parametrize(
    ("probe", "result", "held"),
    [
        (SandboxProbe("x", ""), Result(Status.OK, "held\n"), True),
        (SandboxProbe("x", ""), Result(Status.OK, "got through\n"), False),
        (SandboxProbe("x", ""), Result(Status.ERROR, ""), False),
        (SandboxProbe("x", ""), Result(Status.KILLED), False),
        (SandboxProbe("x", "", killed=True), Result(Status.KILLED), True),
        (SandboxProbe("x", "", endless=True), Result(Status.TIMED_OUT), True),
        (SandboxProbe("x", "", endless=True), Result(Status.OK, "held\n"), False),
    ],
)
def test_what_is_not_surely_refused_has_not_held(probe, result, held):
    assert probe.held(result) is held


def test_a_run_is_refused_if_a_probe_gets_through(monkeypatch):
    monkeypatch.setattr(probes, "PROBES", (*PROBES[:2], SandboxProbe("read a secret", "print('got through')")))
    executor = Contained(Execution())
    try:
        with pytest.raises(ConfigError, match=r"programs can read a secret \(got through\)") as refused:
            executor.check()
    finally:
        asyncio.run(executor.aclose())
    assert "sandbox_fusion" in refused.value.fix
