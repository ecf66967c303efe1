"""Programs as plain subprocesses: their limits, the warning, and the end of their processes."""

import logging
import time
from pathlib import Path

import pytest

from verl_mas.environment.execution.executor import Execution, Limits, Status
from verl_mas.environment.execution.executors.unsafe_subprocess import UnsafeSubprocess, warn_once
from verl_mas.errors import ConfigError

LIMITS = Limits(cpu_s=5, wall_s=60, memory_mb=64, output_bytes=1_000)


@pytest.fixture(scope="module")
def executor() -> UnsafeSubprocess:
    return UnsafeSubprocess(Execution("unsafe_subprocess", slots=4))


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import os; print(os.read(0, os.fstat(0).st_size).decode())", Status.OK),
        ("x = '" + "a" * 10_000_000 + "'; print(input())", Status.OK),
        ("x = bytearray(10**9)", Status.OUT_OF_MEMORY),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Status.KILLED),
        ("open('file', 'w').write('a' * 2000)", Status.TOO_MUCH_OUTPUT),
    ],
)
async def test_input_is_a_file_and_a_program_may_be_long(executor, program, status):
    result = await executor.execute(program, "é \ud800", LIMITS)
    assert result.status is status
    assert result.stdout.strip() == "é \\ud800" or not result.ok


async def test_the_cpu_time_ends_a_program_long_before_the_wall_time(executor):
    program = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    result = await executor.execute(program, limits=Limits(cpu_s=1, wall_s=60))
    assert result.status is Status.TIMED_OUT and result.seconds < 30


async def test_an_error_names_its_line_and_output_that_is_not_text_is_replaced(executor):
    result = await executor.execute("import os\nos.write(1, b'a\\xffb')\n1 / 0\n")
    assert result.stdout == "a\ufffdb" and 'File "<program>", line 3' in result.stderr
    assert result.error == "error: ZeroDivisionError: division by zero"


async def test_a_program_has_no_environment_and_an_empty_folder_of_its_own(executor, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    program = "import os; print(sorted(os.environ), os.listdir(), os.getcwd())"
    printed = (await executor.execute(program)).stdout
    assert "API_KEY" not in printed and "['run.py']" in printed
    assert not Path(printed.split()[-1]).exists()


async def test_what_a_program_starts_ends_with_it(executor):
    result = await executor.execute("import os, time\npid = os.fork()\nif pid == 0: time.sleep(60)\nprint(pid)")
    until, process = time.monotonic() + 5, Path(f"/proc/{result.stdout.strip()}")
    while time.monotonic() < until and process.exists():
        time.sleep(0.01)
    assert result.ok and result.seconds < 30 and not process.exists()


async def test_packages_are_those_of_this_python_and_a_missing_one_is_refused(executor):
    assert not (await executor.execute("import numpy")).ok
    some = UnsafeSubprocess(Execution("unsafe_subprocess", packages=["numpy"]))
    some.check()
    result = await some.execute("import numpy; print(numpy.arange(3).sum())", limits=Limits(cpu_s=5))
    assert result.stdout == "3\n", result.stderr
    with pytest.raises(ConfigError, match="'numpie' cannot be imported"):
        UnsafeSubprocess(Execution("unsafe_subprocess", packages=["numpie"])).check()


def test_it_warns_once_per_process_that_programs_have_the_rights_of_this_user(caplog):
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            UnsafeSubprocess(Execution("unsafe_subprocess"))
    [record] = caplog.records
    assert "with the rights of this user" in record.getMessage()
