"""No program passes a test that it does not solve, in any executor."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from forged_solutions import FORGED
from sandbox_service import sandbox_service

from verl_mas.environment.execution.executor import Call, Execution, Limits
from verl_mas.environment.execution.problem import Returns, Stdio, Verdict, run_tests

# Limits for programs that do not end.
BRIEF = Limits(cpu_s=1, wall_s=2, memory_mb=128)


# The service starts the processes of unsafe_subprocess.
@pytest.fixture(params=["contained", "unsafe_subprocess", pytest.param("sandbox_fusion", marks=pytest.mark.nightly)])
def execution(request) -> Iterator[Execution]:
    with sandbox_service() as service:
        yield Execution(request.param, slots=4, url=service.url if request.param == "sandbox_fusion" else None)


def hidden_tests() -> list[Stdio | Returns]:
    """Tests with random answers. A program can pass one only if it knows the answer."""
    word, number = secrets.token_hex(8), secrets.randbits(60)
    values = [word, number, float(number), [number], {"a": number}, {number}, word.encode(), 1, (True, number)]
    # Arguments start at 2, so that a program cannot pass by returning its argument for another one.
    return [Stdio("1 2", word), *(Returns(Call("solve", [place]), value) for place, value in enumerate(values, 2))]


async def verdicts(
    execution: Execution, programs: dict[str, str], to_pass: list[Stdio | Returns], limits: Limits
) -> dict[str, list[Verdict]]:
    async with aclosing(execution.open()) as executor:
        judged = await asyncio.gather(*(run_tests(executor, each, to_pass, limits) for each in programs.values()))
    return dict(zip(programs, judged, strict=True))


async def test_no_forged_solution_passes_one_test(execution):
    judged = await verdicts(execution, FORGED, hidden_tests(), BRIEF)
    assert len(judged) >= 57 and judged["answers yes to all"][-1].got is True
    passed = [(name, verdict) for name, seen in judged.items() for verdict in seen if verdict.passed]
    assert passed == []


async def test_a_program_that_has_the_answers_passes_all_of_them(execution):
    to_pass = hidden_tests()
    values = [test.expected for test in to_pass if isinstance(test, Returns)]
    program = f"print({to_pass[0].output!r})\ndef solve(x): return {values!r}[x - 2]\n"
    [seen] = (await verdicts(execution, {"honest": program}, to_pass, Limits())).values()
    assert [verdict.passed for verdict in seen] == [True] * len(to_pass)
