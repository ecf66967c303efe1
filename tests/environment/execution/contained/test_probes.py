import os
import subprocess
import sys
from contextlib import aclosing

import pytest

from verl_mas.environment.execution.contained import probes
from verl_mas.environment.execution.contained.probes import PROBES, SandboxProbe, got_through
from verl_mas.environment.execution.executor import Execution, Result, Status
from verl_mas.environment.execution.executors.contained import Contained
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


# A probe that fails for a reason of its own, or that is killed, has not held, unless the kernel may kill it.
STRAY = [
    SandboxProbe("read a secret", "print('got through')"),
    SandboxProbe("fail", "1 / 0"),
    SandboxProbe("be killed", "import os; os.abort()"),
    SandboxProbe("end", "print('held')", endless=True),
]


def test_a_run_is_refused_if_a_probe_does_not_surely_hold(monkeypatch):
    killed = SandboxProbe("be killed", "import os; os.abort()", killed=True)
    monkeypatch.setattr(probes, "PROBES", (*PROBES[:2], killed, *STRAY))
    with pytest.raises(
        ConfigError, match=r"programs can read a secret \(got through\), fail.*, be .*, end "
    ) as refused:
        Contained(Execution()).check()
    assert "sandbox_fusion" in refused.value.fix
