"""The math team with a tool user, and the tool user alone."""

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import IN_PROCESS, RIGHT, WRONG, acts_of, prompts_of, python
from scripted_sessions import play as play_workflow

from verl_mas.workflow import Task
from verl_mas.workflows.reasoner_tool_user import ReasonerToolUser
from verl_mas.workflows.single_tool_user import SingleToolUser

TASK = Task([{"role": "user", "content": "What is a half?"}], ground_truth="\\frac{1}{2}")
FAILS = python("print(1 // 0)")


def code(printed: str) -> str:
    return python(f"print('working')\nprint({printed!r})")


def play(reasoner, tool_user, *, k=1, **args):
    replies = {"reasoner": reasoner, "tool_user": tool_user}
    return play_workflow(ReasonerToolUser(execution=IN_PROCESS, **args), replies, TASK, k=k)


@pytest.mark.parametrize(("box", "printed", "right"), [(RIGHT, "1/2", 1.0), (WRONG, "2", 0.0)])
def test_they_stop_when_their_answers_are_equal_in_any_notation_right_or_wrong(box, printed, right):
    session, _ = play(box, code(printed))
    assert session.info == {"acc": right, "turns": 1, "agreed": 1.0} and session.team_reward == right


def test_they_continue_until_they_agree_and_see_the_previous_round():
    session, llm = play([WRONG, RIGHT], code("0.5"))
    assert session.info["turns"] == 2 and session.team_reward == 1.0
    third = str(llm.requests[2].messages)
    assert "boxed{2}" in third and "It printed: 0.5" in third


def test_no_answer_is_no_agreement():
    session, llm = play("no box", FAILS, max_turns=2)
    assert session.info["turns"] == 2 and session.team_reward == 0.0
    assert "It failed: error: ZeroDivisionError" in str(llm.requests[2].messages)


@pytest.mark.parametrize("box", ["$", ".", "\\,", "1" * 1_001])
def test_a_box_that_holds_no_answer_is_malformed_and_no_agreement(box):
    session, _ = play(f"\\boxed{{{box}}}", code(box), max_turns=2)
    assert session.info["turns"] == 2 and session.info["agreed"] == 0.0 and session.answer is None
    assert session.replies[0].malformed and session.replies[0].reward == 0.0


def test_long_output_of_a_program_is_cut_in_prompts():
    _, llm = play(WRONG, code("9" * 100_000), max_turns=2)
    output = prompts_of(llm)[2].partition("It printed: ")[2]
    assert 900 < len(output) < 2_000


@pytest.mark.parametrize(
    ("reasoner", "tool_user", "rewards"),
    [
        (RIGHT, code("0.5"), [1.0, 1.0]),
        (WRONG, code("2"), [0.2, 0.2]),
        ("no box", FAILS, [0.0, 0.1]),
        ("no box", code("$"), [0.0, 0.1]),
        ("no box", python("print("), [0.0, 0.0]),
        (RIGHT, "no code", [1.0, 0.0]),
    ],
)
def test_each_agent_has_the_reward_of_the_paper(reasoner, tool_user, rewards):
    session, _ = play(reasoner, tool_user, max_turns=1)
    assert [reply.reward for reply in session.replies] == pytest.approx(rewards)


def test_of_the_candidates_the_best_is_committed_and_all_are_scored():
    session, llm = play(lambda request, branch: RIGHT if branch == 2 else WRONG, code("0.5"), k=4)
    reasoned = acts_of(session, "reasoner")
    assert [reply.team_reward for reply in reasoned] == [0.0, 0.0, 1.0, 0.0]
    assert [reply.committed for reply in reasoned] == [False, False, True, False]
    assert "boxed{0.5}" in str(llm.requests[1].messages)
    assert session.info["agreed"] == 1.0


def alone(replies, **args):
    return play_workflow(SingleToolUser(execution=IN_PROCESS, **args), replies)


def test_alone_the_first_answer_that_can_be_read_is_the_answer():
    session, _ = alone(python("print(1 / 2)"))
    assert session.answer == "0.5" and session.info == {"acc": 1.0, "turns": 1} and session.team_reward == 1.0
    assert alone(python("print(2)"))[0].info == {"acc": 0.0, "turns": 1}


def test_alone_after_a_failure_it_reads_its_program_and_the_error():
    session, llm = alone([python("1 // 0"), "no code", python("print(0.5)")])
    assert session.info == {"acc": 1.0, "turns": 3}
    assert "1 // 0\n```\nIt failed: error: ZeroDivisionError" in prompts_of(llm)[1]
    assert [reply.reward for reply in session.replies] == pytest.approx([0.1, 0.0, 1.0])


def test_alone_it_ends_after_the_last_turn():
    session, _ = alone(python("while True: pass"), max_turns=2)
    assert session.info == {"acc": 0.0, "turns": 2} and session.answer is None
