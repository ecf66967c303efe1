"""The rewards of tests, on programs that run in this process."""

import asyncio

import pytest
from in_process_programs import NAME

from verl_mas.environment.coding.team import ProgramAttempt, Runner
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.execution.problem import Problem, Stdio
from verl_mas.workflows.coder_tester import CaseScore, at_grpo, cure

# The task: print the number plus one.
GOLDEN = "print(int(input()) + 1)"
RIGHT, ALSO_RIGHT = ProgramAttempt(GOLDEN, True, True, 1.0), ProgramAttempt(f"{GOLDEN} # too", True, True, 1.0)
DOUBLES, ZERO = ProgramAttempt("print(int(input()) * 2)", True, True, 0.5), ProgramAttempt("print(0)", True, True, 0.0)
NONE, BROKEN = ProgramAttempt(None), ProgramAttempt("print(")
TELLS, USELESS = Stdio("5", "6"), Stdio("1", "2")
HARMLESS, HARMFUL = Stdio("5", "7"), Stdio("5", "10")


def scores(reward, tests, attempts=()) -> list[CaseScore]:
    problem = Problem([Stdio("1", "2"), Stdio("3", "4")])
    return asyncio.run(reward(Runner.of(problem.text(), Execution(executor=NAME)), tests, attempts))


def test_at_grpo_says_nothing_without_a_golden_program():
    assert scores(at_grpo, [TELLS, None]) == [CaseScore(None, None)] * 2


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([RIGHT, DOUBLES], [1.0, 0.0, 0.0, -1.0, -1.2]),
        ([RIGHT, ALSO_RIGHT, DOUBLES, ZERO], [1.0, 0.5, 0.0, -0.5, -1.2]),
        ([RIGHT, DOUBLES, DOUBLES, NONE, BROKEN], [1.0, 0.5, 0.0, -0.5, -1.2]),
        ([RIGHT], [1.0, 1.0, -1.0, -1.0, -1.2]),
    ],
)
def test_cure_pays_for_wrong_programs_that_fail_and_charges_for_those_that_pass(attempts, expected):
    found = scores(cure, [TELLS, USELESS, HARMLESS, HARMFUL, None], attempts)
    assert [score.reward for score in found] == pytest.approx(expected)
    assert [score.right for score in found] == [True, True, False, False, False]
    assert all(score.trained for score in found)


@pytest.mark.parametrize("attempts", [[DOUBLES, ZERO], [NONE]])
def test_cure_knows_nothing_without_a_right_program(attempts):
    found = scores(cure, [TELLS, None], attempts)
    assert found == [CaseScore(0.0, None, trained=False), CaseScore(-1.2, None, trained=False)]
