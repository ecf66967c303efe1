"""Single acts, and proposals with reviews between them, scored by verl or by a grader."""

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import APPROVE, REJECT, RIGHT, WRONG, prompts_of
from scripted_sessions import play as play_workflow

from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.solver_verifier import SolverVerifier

TASK = Task([{"role": "user", "content": "What is a half?"}], ground_truth="\\frac{1}{2}")
HANGING = "\\boxed{9^{9^{9^{9}}}}"


def agents(session):
    return [reply.agent for reply in session.replies]


def play(solver, verifier, **args):
    llm = ScriptedLLM({"solver": solver, "verifier": verifier})
    specs = {"solver": AgentSpec(format_penalty=0.1), "verifier": AgentSpec(format_penalty=0.1)}
    return run(SolverVerifier(score="math", **args), TASK, llm, agents=specs, faults=FaultSpec(retries=0))


def test_an_approved_proposal_is_the_answer_and_one_round_has_no_review():
    session = run(SolverVerifier(max_rounds=3), "2 + 2?", ScriptedLLM({"solver": "4", "verifier": APPROVE}))
    assert agents(session) == ["solver", "verifier"] and session.answer == "4" and session.info == {"reviews": 1}
    one = play(RIGHT, APPROVE, max_rounds=1)
    assert agents(one) == ["solver"] and one.info == {"reviews": 0, "acc": 1.0, "unchecked": 0.0}


@pytest.mark.parametrize("verdict", [REJECT, "approve", "", "<verify>ok</verify>", APPROVE + REJECT])
def test_without_an_approval_another_proposal_is_made_with_the_review_in_its_prompt(verdict):
    session, llm = play_workflow(SolverVerifier(), {"solver": ["5", "4"], "verifier": verdict}, Task.of("2 + 2?"))
    assert agents(session) == ["solver", "verifier", "solver"] and session.answer == "4"
    asked = prompts_of(llm)[2]
    assert asked.startswith("2 + 2?") and "An earlier solution:\n5" in asked and f"wrote:\n{verdict}" in asked
    assert (session.replies[1].malformed is None) == (verdict == REJECT)


@pytest.mark.parametrize(
    ("solver", "verifier", "scores"),
    [
        (RIGHT, APPROVE, [1.0, 1.0]),
        ([WRONG, RIGHT], REJECT, [1.0, 1.0, 1.0]),
        ([RIGHT, WRONG], REJECT, [0.0, 0.0, 0.0]),
        (WRONG, APPROVE, [0.0, 0.0]),
        # A penalty lands on the malformed act alone.
        ("no box", REJECT, [-0.1, 0.0, -0.1]),
        ([RIGHT, "no box"], REJECT, [0.0, 0.0, -0.1]),
        (RIGHT, "hm", [1.0, 0.9, 1.0]),
        *((f"\\boxed{{{blank}}}", APPROVE, [-0.1, 0.0]) for blank in ("$", ".", "\\,")),
    ],
)
def test_the_last_proposal_is_graded_for_every_act(solver, verifier, scores):
    session = play(solver, verifier)
    assert [row.reward.score for row in session.rows()] == pytest.approx(scores)
    assert [bool(reply.malformed) for reply in session.replies] == [score % 1 != 0 for score in scores]


@pytest.mark.parametrize(
    ("solver", "verifier", "verdict", "earned"),
    [
        (RIGHT, APPROVE, (True, True), 0.3),
        ([WRONG, RIGHT], REJECT, (False, False), 0.3),
        (RIGHT, REJECT, (False, True), None),
        (WRONG, APPROVE, (True, False), None),
        (WRONG, "hm", (None, False), None),
    ],
)
def test_a_verdict_is_declared_with_the_truth_of_the_proposal_it_is_about_and_a_right_one_earns(
    solver, verifier, verdict, earned
):
    session = play(solver, verifier, verdict_reward=0.3)
    assert session.outcome.verdicts == {"verifier": [verdict]}
    assert [reply.reward for reply in session.replies[:2]] == [None, earned]
    assert session.info["right_verdicts"] == float(earned is not None)


def test_more_rounds_mean_more_reviews():
    session = play(WRONG, REJECT, max_rounds=4)
    assert agents(session) == ["solver", "verifier"] * 3 + ["solver"]
    assert session.info == {"reviews": 3, "acc": 0.0, "right_verdicts": 1.0, "unchecked": 0.0}
    assert session.outcome.verdicts == {"verifier": [(False, False)] * 3}
    assert session.reported == {**session.info, "verdicts": session.outcome.verdicts}, "rows and records have both"


@pytest.mark.parametrize(("verdict", "unchecked"), [(APPROVE, 1.0), (REJECT, 0.5)])
def test_an_answer_that_cannot_be_checked_is_counted_and_a_verdict_on_it_is_not(verdict, unchecked):
    session = play([HANGING, RIGHT], verdict, verdict_reward=0.3)
    assert session.replies[1].reward is None and session.team_reward == (0.0 if verdict is APPROVE else 1.0)
    assert session.outcome.verdicts == {"verifier": []} and "right_verdicts" not in session.info
    assert session.info["unchecked"] == unchecked
