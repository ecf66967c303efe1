"""The tool user alone."""

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import IN_PROCESS, prompts_of, python
from scripted_sessions import play as play_workflow

from verl_mas.workflows.single_tool_user import SingleToolUser


def play(replies, **args):
    return play_workflow(SingleToolUser(execution=IN_PROCESS, **args), replies)


def test_the_first_answer_that_can_be_read_is_the_answer():
    session, _ = play(python("print(1 / 2)"))
    assert session.answer == "0.5" and session.info == {"acc": 1.0, "turns": 1} and session.team_reward == 1.0
    assert play(python("print(2)"))[0].info == {"acc": 0.0, "turns": 1}


def test_after_a_failure_it_reads_its_program_and_the_error():
    session, llm = play([python("1 // 0"), "no code", python("print(0.5)")])
    assert session.info == {"acc": 1.0, "turns": 3}
    assert "1 // 0\n```\nIt failed: error: ZeroDivisionError" in prompts_of(llm)[1]
    assert [reply.reward for reply in session.replies] == pytest.approx([0.1, 0.0, 1.0])


def test_it_ends_after_the_last_turn():
    session, _ = play(python("while True: pass"), max_turns=2)
    assert session.info == {"acc": 0.0, "turns": 2} and session.answer is None
