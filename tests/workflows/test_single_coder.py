"""The coder alone, with programs that run in this process."""

import pytest
from scripted_sessions import IN_PROCESS, prompts_of, python
from scripted_sessions import play as play_workflow

from verl_mas.environment.execution.problem import Problem, Stdio
from verl_mas.workflow import Task
from verl_mas.workflows.single_coder import SingleCoder

SUM, PRODUCT = "print(sum(map(int, input().split())))", "a, b = map(int, input().split())\nprint(a * b)"
PROBLEM = Problem([Stdio("5 5", "10"), Stdio("0 0", "0")], examples=[Stdio("2 2\n", "4\n"), Stdio("1 2\n", "3\n")])


def play(coder, *, problem=PROBLEM, **args):
    task = Task([{"role": "user", "content": "Add."}], ground_truth=problem.text())
    return play_workflow(SingleCoder(execution=IN_PROCESS, **args), coder, task)


def test_a_program_that_passes_the_examples_is_the_answer():
    session, _ = play(python(SUM))
    assert session.answer == SUM and session.team_reward == 1.0
    assert session.info == {"acc": 1.0, "share": 1.0, "turns": 1, "examples_passed": 1.0, "compiled": 1.0}


def test_otherwise_it_reads_the_first_example_that_failed_and_tries_again():
    session, llm = play([python(PRODUCT), python(SUM)])
    assert session.info["turns"] == 2 and session.info["acc"] == 1.0
    asked = prompts_of(llm)[1]
    assert PRODUCT in asked and "<input>1 2</input>\n<output>3</output>" in asked and "of your program: \n2\n" in asked
    assert "5 5" not in asked


@pytest.mark.parametrize("reply", [python(PRODUCT), python("print("), "no program"])
def test_it_ends_after_the_last_turn(reply):
    session, _ = play(reply, max_turns=3)
    assert session.info["turns"] == 3 and session.info["examples_passed"] == 0.0


def test_without_examples_there_is_nothing_to_read_and_one_turn():
    session, _ = play(python(PRODUCT), problem=Problem(PROBLEM.tests))
    assert session.info["turns"] == 1 and session.info["share"] == 0.5


def test_hidden_tests_do_not_decide_when_it_stops():
    session, _ = play(python("print(sum(map(int, input().split())) % 5)"))
    assert session.info["turns"] == 1 and session.info["acc"] == 0.0
