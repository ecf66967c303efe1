"""In every executor programs end in the same ways, and no program passes a test that it does not solve."""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest
from forged_solutions import FORGED
from sandbox_service import sandbox_service

from verl_mas.environment.execution.executor import Call, Execution, Executor, Limits, Status
from verl_mas.environment.execution.problem import Returns, Stdio, Verdict, run_tests

LIMITS = Limits(cpu_s=3, memory_mb=64, output_bytes=1000)
# Limits for programs that do not end.
BRIEF = Limits(cpu_s=1, wall_s=2, memory_mb=128)


@pytest.fixture(scope="module", params=["contained", "unsafe_subprocess", "sandbox_fusion"])
def executor(request) -> Iterator[Executor]:
    with sandbox_service() as service:
        url = service.url if request.param == "sandbox_fusion" else None
        opened = Execution(request.param, slots=3, url=url).open()
        yield opened
        asyncio.run(opened.aclose())


@pytest.mark.parametrize(
    ("program", "status", "stdout"),
    [
        ("print(input()[::-1])", Status.OK, "cba\n"),
        ("import atexit\natexit.register(print, 2)\nprint(1)", Status.OK, "1\n2\n"),
        ("print('x' * 1000, end='')", Status.OK, "x" * 1000),
        ("import os; os.write(1, b'a\\xff')", Status.OK, "a\N{REPLACEMENT CHARACTER}"),
        ("print(1)\n1 / 0", Status.ERROR, "1\n"),
        ("x = = 1", Status.SYNTAX_ERROR, ""),
        ("'\ud800'", Status.SYNTAX_ERROR, ""),
        ("import time; time.sleep(9)", Status.TIMED_OUT, ""),
        ("x = bytearray(10**15)", Status.OUT_OF_MEMORY, ""),
        ("print('x' * 3_000_000)", Status.TOO_MUCH_OUTPUT, "x" * 1000),
        ("import ctypes; ctypes.string_at(0)", Status.KILLED, ""),
        ("import sys; print('x' * 3_000_000, file=sys.stderr)", Status.TOO_MUCH_OUTPUT, ""),
    ],
    ids=range(12),
)
async def test_how_a_program_ended(executor, program, status, stdout):
    limits = replace(LIMITS, wall_s=1.5 if status is Status.TIMED_OUT else 30)
    result = await executor.execute(program, "abc\n", limits)
    assert (result.status, result.stdout) == (status, stdout), result.stderr
    assert len(result.stderr) <= 1000


async def test_as_many_programs_run_at_once_as_there_are_slots(executor):
    program = "import time; print(time.time()); time.sleep(0.5); print(time.time())"
    ran = await asyncio.gather(*(executor.execute(program, "", LIMITS) for _ in range(4)))
    spans = [tuple(map(float, result.stdout.split())) for result in ran]
    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) == 3


PROGRAM = """
import dataclasses, os, sys
@dataclasses.dataclass
class Solution:
    total: int = 0
    def add(self, a, b=1): return a + b
class Always(int):
    __eq__ = lambda self, other: True
def f(x): return (x, {1: x})
def noise(): print('{"value": 0}', end=''); return 1 / 0
def leave(): sys.exit(3)
def strange(): return Always(1)
def long(): return "x" * 2_000_000
def stop(): os._exit(0)
if __name__ == "__main__": raise RuntimeError("not run as a script")
"""


async def test_calls_are_answered_with_plain_values_until_the_program_ends(executor):
    right = [Call("f", [{True}]), Call("f", [], {"x": float("inf")}), Call("Solution.add", [1], {"b": 5})]
    wrong = {
        "noise": "ZeroDivisionError: division by zero",
        "leave": "SystemExit: 3",
        "strange": "NotPlain: a value of type Always",
        "long": "a value of more than 1000000 bytes",
        "absent": "NameError: name 'absent' is not defined",
    }
    calls = [*right, *map(Call, [*wrong, "stop", "f"])]
    answers = await executor.call(PROGRAM, calls, LIMITS)
    assert [answer.value for answer in answers[:3]] == [({True}, {1: {True}}), (float("inf"), {1: float("inf")}), 6]
    assert [answer.error for answer in answers[:-2]] == [None, None, None, *wrong.values()]
    assert all(answer.error and answer.value is None for answer in answers[-2:])


def hidden_tests() -> list[Stdio | Returns]:
    """Tests with random answers. A program can pass one only if it knows the answer."""
    word, number = secrets.token_hex(8), secrets.randbits(60)
    values = [word, number, float(number), [number], {"a": number}, {number}, word.encode(), 1, (True, number)]
    # Arguments start at 2, so that a program cannot pass by returning its argument for another one.
    return [Stdio("1 2", word), *(Returns(Call("solve", [place]), value) for place, value in enumerate(values, 2))]


async def verdicts(
    executor: Executor, programs: dict[str, str], to_pass: list[Stdio | Returns], limits: Limits
) -> dict[str, list[Verdict]]:
    judged = await asyncio.gather(*(run_tests(executor, each, to_pass, limits) for each in programs.values()))
    return dict(zip(programs, judged, strict=True))


# The service starts the processes of unsafe_subprocess.
NIGHTLY = pytest.param("sandbox_fusion", marks=pytest.mark.nightly)


@pytest.mark.parametrize("executor", ["contained", "unsafe_subprocess", NIGHTLY], indirect=True)
async def test_no_forged_solution_passes_one_test(executor):
    judged = await verdicts(executor, FORGED, hidden_tests(), BRIEF)
    assert len(judged) >= 57 and judged["answers yes to all"][-1].got is True
    passed = [(name, verdict) for name, seen in judged.items() for verdict in seen if verdict.passed]
    assert passed == []


async def test_a_program_that_has_the_answers_passes_all_of_them(executor):
    to_pass = hidden_tests()
    values = [test.expected for test in to_pass if isinstance(test, Returns)]
    program = f"print({to_pass[0].output!r})\ndef solve(x): return {values!r}[x - 2]\n"
    [seen] = (await verdicts(executor, {"honest": program}, to_pass, Limits())).values()
    assert [verdict.passed for verdict in seen] == [True] * len(to_pass)
