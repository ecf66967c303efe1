"""A warm process behaves as a cold one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import warm_python

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="warm processes are made on Linux")]


@pytest.fixture
def run(warm_python):
    def run(program: str, *arguments: str, **kwargs) -> subprocess.CompletedProcess:
        command = [warm_python, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)

    return run


def test_two_draw_different_numbers(run):
    program = "import random, numpy; print(random.random(), numpy.random.random())"
    one, other = (run(program).stdout.split() for _ in range(2))
    assert one[0] != other[0] and one[1] != other[1]


def test_the_workers_of_a_run_draw_different_ids():
    program = f"""if True:
        import os, sys
        sys.path.insert(0, {str(Path(warm_python.__file__).parent)!r})
        import warm_python
        warm_python.import_verl(warm_python.WORKER)
        from ray._raylet import UniqueID
        for _ in range(2):
            if os.fork():
                os.wait()
            else:
                os.write(1, UniqueID.from_random().hex().encode() + b"\\n")
                os._exit(0)
    """
    environment = os.environ | {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    one, other = printed.stdout.split()
    assert one != other


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('bad')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_ends_as_its_program_does(run, program, status):
    done = run(program)
    assert done.returncode == status
    assert ("ValueError: bad" in done.stderr) is ("bad" in program)


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_its_client_is_ended(warm_python, with_signal):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    started = subprocess.Popen([warm_python, "-c", program], stdout=subprocess.PIPE, text=True)
    process = psutil.Process(int(started.stdout.readline()))
    os.kill(started.pid, with_signal)
    started.communicate()
    assert started.returncode == -with_signal
    until = time.monotonic() + 10
    while process.is_running() and time.monotonic() < until:
        time.sleep(0.05)
    assert not process.is_running()
