"""The environment and signals that a fork server inherits from its caller."""

import os
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import psutil

from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.execution.executors.contained import Contained


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
    script = f"""
import asyncio, signal
from verl_mas.environment.execution.executors.contained import Contained
from verl_mas.environment.execution.executor import Execution
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
