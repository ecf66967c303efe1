import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from verl_mas.environment.execution.contained import probes
from verl_mas.environment.execution.contained.probes import PROBES, SandboxProbe, got_through
from verl_mas.environment.execution.executor import Answer, Call, Execution, Limits, Result, Status
from verl_mas.environment.execution.executors.contained import Contained
from verl_mas.errors import ConfigError, ExecutorFailed

SHORT = Limits(cpu_s=0.3, wall_s=0.8, memory_mb=64, output_bytes=1000)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Contained]:
    """One sandbox for all tests. Each test uses it in another event loop."""
    executor = Contained(Execution(slots=2))
    yield executor
    asyncio.run(executor.aclose())


def execute(sandbox: Contained, program: str, stdin: str = "", limits: Limits = SHORT) -> Result:
    return asyncio.run(sandbox.execute(textwrap.dedent(program), stdin, limits))


def servers(sandbox: Contained) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in sandbox.pids()]


def gone(pids: list[int], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(psutil.pid_exists, pids))


def test_a_program_that_does_not_compile_or_that_lacks_memory_has_an_exit_code_of_its_own(sandbox):
    programs = ("print(1)", "1 / 0", "x = = 1", "x = bytearray(10**9)", "import time; time.sleep(9)")
    assert [execute(sandbox, program).exit_code for program in programs] == [0, 1, 251, 250, None]


def test_time_and_memory_are_measured_and_an_exception_has_the_traceback_of_the_program_alone(sandbox):
    program = "import time; x = b'1' * 30_000_000; time.sleep(0.1)\nfor _ in range(10**6): pass\n1 / 0"
    result = execute(sandbox, program, limits=Limits())
    assert 0.1 < result.seconds < 5 and 0.005 < result.cpu_seconds < 1 and 30 < result.memory_mb < 150
    assert result.stderr.count("File") == 1 and 'File "program.py", line 3, in <module>\n    1 / 0' in result.stderr


def test_an_absent_package_is_not_found_and_the_standard_library_is(sandbox):
    assert execute(sandbox, "import sqlite3, xml.dom.minidom, csv, unittest; print(1)").stdout == "1\n"
    for package in ("numpy", "verl_mas", "contained", "site_packages", "pip"):
        assert "ModuleNotFoundError" in execute(sandbox, f"import {package}").stderr


def test_calls_are_answered_until_the_program_ends(sandbox):
    program = "import os\ndef f(x): return {x}\ndef g(): os._exit(0)\ndef h():\n while True: pass"
    answers = asyncio.run(sandbox.call(program, [Call("g"), Call("f", [2])], SHORT))
    assert [answer.error for answer in answers] == ["no answer"] * 2
    answers = asyncio.run(sandbox.call(program, [Call("f", [1]), Call("h"), Call("f", [1])], SHORT))
    assert answers == [Answer({1}), Answer(error="timed out"), Answer(error="timed out")]


async def test_programs_are_run_again_if_the_fork_server_is_killed(sandbox):
    await sandbox.execute("1")
    (server,) = servers(sandbox)
    program = "import time; time.sleep(0.3); print(input())"
    tasks = [asyncio.create_task(sandbox.execute(program, f"{number}\n")) for number in range(6)]
    await asyncio.sleep(0.15)
    family = [server.pid, *(child.pid for child in server.children(recursive=True))]
    server.kill()
    assert [result.stdout for result in await asyncio.gather(*tasks)] == [f"{number}\n" for number in range(6)]
    assert len(family) > 2 and gone(family)


async def test_a_program_that_is_killed_from_outside_is_run_again(sandbox):
    await sandbox.execute("1")
    (server,) = servers(sandbox)
    task = asyncio.create_task(sandbox.execute("import time; time.sleep(0.5); print(1)"))
    await asyncio.sleep(0.2)
    max(server.children(recursive=True), key=lambda process: process.create_time()).kill()
    assert (await task).stdout == "1\n"


async def test_a_sandbox_that_dies_again_and_again_is_an_error_and_no_verdict(sandbox):
    task = asyncio.create_task(sandbox.execute("import time; time.sleep(5)", limits=Limits(wall_s=20)))
    for _ in range(3):
        while not servers(sandbox):
            await asyncio.sleep(0.02)
        await sandbox.execute("1")
        servers(sandbox)[0].kill()
        await asyncio.sleep(0.1)
    with pytest.raises(ExecutorFailed, match="failed 3 times"):
        await task
    assert (await sandbox.execute("print(1)")).stdout == "1\n"


@pytest.mark.parametrize("cancelled", [0, 2])
async def test_a_fork_server_that_does_not_answer_is_replaced_and_cancelled_programs_leave_their_slots(
    sandbox, monkeypatch, cancelled
):
    monkeypatch.setattr("verl_mas.environment.execution.executors.contained._SILENCE_S", 0.2)
    await sandbox.execute("1")
    (server,) = servers(sandbox)
    for process in (server, *server.children(recursive=True)):
        process.suspend()
    tasks = [asyncio.create_task(sandbox.execute("1")) for _ in range(cancelled)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    assert (await asyncio.wait_for(sandbox.execute("print(1)", limits=SHORT), 10)).stdout == "1\n"


async def test_a_caller_without_free_descriptors_gets_no_verdict_and_loses_no_slot(sandbox):
    await sandbox.execute("1")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        failed = await asyncio.gather(*(sandbox.execute("1") for _ in range(3)), return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all(isinstance(error, ExecutorFailed) and "open files" in str(error) for error in failed), failed
    assert (await asyncio.wait_for(sandbox.execute("print(1)"), 10)).stdout == "1\n"


def test_descriptors_and_processes_do_not_grow(sandbox):
    threaded = "import threading\nthreading.Thread(target=lambda: 1).start()\nwhile True: pass"

    async def run() -> None:
        results = await asyncio.gather(*(sandbox.execute(each, limits=SHORT) for each in ["print(1)"] * 9 + [threaded]))
        assert {result.status for result in results} == {Status.OK, Status.TIMED_OUT}

    asyncio.run(run())
    before = len(os.listdir("/proc/self/fd"))
    (server,) = servers(sandbox)
    ours = [server, *server.children(recursive=True)]
    theirs = [process.num_fds() for process in ours]
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before
    assert [process.num_fds() for process in ours] == theirs and server.children(recursive=True) == ours[1:]


async def test_after_closing_nothing_runs_and_waiting_programs_fail():
    executor = Contained(Execution())
    task = asyncio.create_task(executor.execute("import time; time.sleep(9)"))
    await asyncio.sleep(0.1)
    while not executor.pids():
        await asyncio.sleep(0.02)
    await executor.execute("1")
    pids = executor.pids()
    waiting = [asyncio.create_task(executor.execute("1")) for _ in range(9)]
    await asyncio.sleep(0)
    await executor.aclose()
    for ended in await asyncio.gather(task, *waiting, return_exceptions=True):
        assert isinstance(ended, ExecutorFailed) and "closed" in str(ended)
    assert gone(pids) and not executor.pids()
    assert (await executor.execute("print(1)")).ok
    await executor.aclose()


IMPORTS = """
import asyncio, signal, sys, psutil
from verl_mas.environment.execution.executors.contained import Contained
from verl_mas.environment.execution.executor import Execution
"""
SCRIPT = """
async def main():
    executor = Contained(Execution())
    await executor.execute("1")
    asyncio.create_task(executor.execute("import time; time.sleep(60)"))
    await asyncio.sleep(0.3)
    print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
    if sys.argv[1] == "wait":
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["wait", "leave"])
def test_nothing_outlives_its_process(how):
    command = [sys.executable, "-c", IMPORTS + SCRIPT, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) >= 2
        if how == "wait":
            process.send_signal(signal.SIGKILL)
        assert gone(pids)
        assert process.stderr.read() == ""


async def test_the_fork_server_gets_nothing_of_its_caller(tmp_path, monkeypatch):
    for module in ("random", "json", "sitecustomize", "contained", "numpy"):
        (tmp_path / f"{module}.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    poison = {"PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "error", "LD_PRELOAD": "/none.so", "KEY": "secret"}
    for name, value in {**poison, "LD_LIBRARY_PATH": "/none"}.items():
        monkeypatch.setenv(name, value)
    executor, (inherited, _) = Contained(Execution()), os.pipe()
    os.set_inheritable(inherited, True)
    async with aclosing(executor):
        result = await executor.execute("import random, json; print(json.dumps(1))")
        (server,) = map(psutil.Process, executor.pids())
        family = [server, *server.children(recursive=True)]
        opened = [os.readlink(file) for one in family for file in Path(f"/proc/{one.pid}/fd").iterdir()]
        environment = {name for one in family for name in one.environ()}
    assert result.stdout == "1\n", result.stderr
    assert not environment & poison.keys() and "LD_LIBRARY_PATH" in environment
    assert {name.split(":")[0] for name in opened} == {"/dev/null", "/memfd", "pipe", "socket"}
    assert os.readlink(f"/proc/self/fd/{inherited}") not in opened and sum("socket" in name for name in opened) == 1


def test_signals_that_the_caller_ignores_or_blocks_change_nothing():
    ignored = [signal.SIGCHLD, signal.SIGUSR2, signal.SIGXCPU]
    script = f"""{IMPORTS}
for number in {[int(number) for number in ignored]}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGCHLD, signal.SIGUSR2, signal.SIGXFSZ}})
async def main():
    executor = Contained(Execution())
    print(*[(await executor.execute("print(1)")).status.name for _ in range(20)])
    await executor.aclose()
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout.split() == ["OK"] * 20, run.stderr


def test_another_machine_is_refused(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match=r"aarch64(?s:.)*unsafe_subprocess"):
        Contained(Execution()).check()


PACKAGES = """
import numpy as np, sympy
x = sympy.symbols("x")
def f(n): return np.linalg.inv(np.eye(n) / 2), np.int64(n), sympy.solve(x**2 - 4)[0] == -2
"""


async def test_packages_are_imported_if_they_are_allowed():
    async with aclosing(Contained(Execution(packages=["numpy", "sympy"]))) as executor:
        answers = await executor.call(PACKAGES, [Call("f", [2])])
        assert answers == [Answer(([[2.0, 0.0], [0.0, 2.0]], 2, True))]
        assert "No module named 'pandas'" in (await executor.execute("import pandas")).stderr


@pytest.mark.parametrize(
    ("package", "fix"),
    [("no_such_package", "pip install"), ("json", "leave it out"), ("typing_extensions", "leave it out")],
)
def test_a_package_that_cannot_be_imported_is_refused(package, fix):
    with pytest.raises(ConfigError, match=f"packages: '{package}'") as refused:
        Contained(Execution(packages=[package])).check()
    assert refused.value.fix.startswith(fix)


WITHOUT_SECCOMP = """
from verl_mas.environment.execution.contained.seccomp import Filter, Instruction
refused = [(0x20, 0, 0, 0), (0x15, 0, 3, 157), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (6, 0, 0, 0x50001)]
refused.append((6, 0, 0, 0x7FFF0000))
Filter([Instruction(*step) for step in refused]).install()
try:
    Contained(Execution()).check()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_machine_without_the_filter_is_refused():
    run = subprocess.run([sys.executable, "-c", IMPORTS + WITHOUT_SECCOMP], capture_output=True, text=True, check=True)
    assert "ConfigError mas.workflow.args.execution.executor=contained" in run.stdout, run.stdout + run.stderr
    assert "prctl" in run.stdout and "sandbox_fusion" in run.stdout


async def test_the_layers_of_this_machine_are_listed(sandbox):
    layers = await sandbox.layers()
    assert layers.keys() == {"seccomp", "namespaces", "landlock", "user", "threads"} and layers["seccomp"] == "yes"


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


# A probe that fails for another reason, or that is killed, does not count as held, unless the kernel may kill it.
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
