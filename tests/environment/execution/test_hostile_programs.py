"""The shipped sandbox runs the programs of tests/support/hostile_programs."""

import asyncio
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_programs import HONEST, HOSTILE, KINDS
from hostile_programs.surroundings import Surroundings

from verl_mas.environment.execution.executor import Execution, Executor, Limits, Result, Status
from verl_mas.environment.execution.executors.contained import Contained

ROOT = Path(__file__).parents[3]
OTHER_USER = 65534
# The system's interpreter must find our dependencies as well.
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/support:{sysconfig.get_path('purelib')}", "PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def surroundings() -> Iterator[Surroundings]:
    with Surroundings() as attacked:
        yield attacked


@pytest.fixture(scope="module")
def processes(surroundings: Surroundings) -> Callable[[], set[int]]:
    """Return the processes that the executor has started, without the victim and without processes of other tests, such
    as a Ray cluster, which starts processes all the time."""
    before = set(psutil.Process().children())

    def started() -> set[int]:
        children = set(psutil.Process().children()) - before
        return {process.pid for child in children for process in (child, *child.children(recursive=True))}

    return started


@pytest.fixture(scope="module")
def executor(processes: Callable[[], set[int]]) -> Iterator[Executor]:
    # Do not use the executor of `Execution.open`, because other tests of this process may have started it.
    contained = Contained(Execution())
    yield contained
    asyncio.run(contained.aclose())


async def run(executor: Executor, *programs: tuple[str, str], limits: Limits | None = None) -> list[Result]:
    """Run the programs at the same time."""
    return await asyncio.gather(*(executor.execute(*program, limits or Limits()) for program in programs))


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
async def test_a_hostile_program_is_contained(executor, surroundings, case):
    ran = await executor.execute(surroundings.text(case), case.stdin, case.limits)
    after = await executor.execute("print(1)")
    assert case.wrong(ran) + surroundings.harm() == []
    assert (after.status, after.stdout, after.stderr) == (Status.OK, "1\n", "")


@pytest.mark.parametrize("case", HONEST, ids=lambda case: case.name)
async def test_an_honest_program_runs_as_in_any_python(executor, case):
    [result] = await run(executor, (case.program, case.stdin), limits=case.limits)
    assert case.wrong(result) == []


def test_the_corpus_has_every_kind():
    assert len(HOSTILE) >= 131 and len(HONEST) >= 19
    assert all(len(cases) >= 3 for cases in KINDS.values())
    names = [case.name for case in [*HOSTILE, *HONEST]]
    assert len(names) == len(set(names))


async def test_a_cancelled_program_ends_and_its_place_is_free(executor, processes):
    await executor.execute("print(1)")
    before = processes()
    forever = [asyncio.create_task(executor.execute("import time; time.sleep(60)")) for _ in range(8)]
    await asyncio.sleep(0.3)
    for task in forever:
        task.cancel()
    after = await asyncio.wait_for(run(executor, *[("print(1)", "")] * 8), 5)
    assert [result.stdout for result in after] == ["1\n"] * 8
    assert processes() == before


async def test_a_greedy_program_leaves_threads_to_the_others(executor):
    small = "import threading, time\nthreading.stack_size(1 << 18)\n"
    greedy = small + "for _ in range(60): threading.Thread(target=time.sleep, args=(1,)).start()"
    honest = small + "for _ in range(40): threading.Thread(target=time.sleep, args=(0.1,)).start()\nprint('x' * 60_000)"
    together = await run(executor, *[(greedy, ""), (honest, "")] * 2)
    assert [result.status for result in together] == [Status.OK] * 4


async def test_no_memory_that_can_be_written_is_shared_between_programs(executor, processes):
    sleeping = asyncio.create_task(executor.execute("import time; time.sleep(0.5)"))
    await asyncio.sleep(0.3)
    lines = [line for pid in processes() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    await sleeping
    shared = [line for line in lines if line.split()[1].endswith("s")]
    assert len(lines) > 100
    # The C library maps a file of the system that it has opened for reading.
    assert [line for line in shared if " r--s " not in line or "memfd" in line or "deleted" in line] == []


async def test_modules_that_a_program_changed_are_whole_for_the_next(executor):
    # The code of each imported module comes from memory that all children share.
    use = "import difflib, fractions, graphlib, shlex\nprint(fractions.Fraction(1, 2), shlex.split('a b'))"
    first = await run(executor, (use, ""))
    for case in KINDS["others"]:
        if "written" in case.name:
            await run(executor, (case.program, ""), limits=case.limits)
    assert [result.stdout for result in await run(executor, (use, ""))] == [result.stdout for result in first]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_filter_alone_contains_the_set_for_a_user_without_privileges(every):
    # Run all programs at the same time, as in a container that refuses namespaces and landlock.
    other: dict[str, Any] = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": []} if os.getuid() == 0 else {}
    python = interpreter_for_everybody() if other else sys.executable
    if python is None:
        pytest.skip("no interpreter that another user may start")
    command = [python, "-m", "hostile_programs", "--bare", f"--every={every}"]
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, env=ENVIRONMENT, **other)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def interpreter_for_everybody() -> str | None:
    """Return the first interpreter that the other user may start and that finds our package."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            tried = subprocess.run(
                [python, "-c", "import verl_mas.environment.execution.executor"],
                user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd="/", capture_output=True,
                env=ENVIRONMENT,
            )  # fmt: skip
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    return None
