from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.errors import ConfigError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.solver_verifier import SolverVerifier

TASK = Task([{"role": "user", "content": "What is a half?"}], ground_truth="\\frac{1}{2}")
RIGHT, WRONG = "so \\boxed{0.5}", "so \\boxed{2}"
APPROVE, REJECT = "fine <verify>approve</verify>", "no <verify>reject</verify>"


def play(solver, verifier, **args):
    llm = ScriptedLLM({"solver": solver, "verifier": verifier})
    specs = {"solver": AgentSpec(format_penalty=0.1), "verifier": AgentSpec(format_penalty=0.1)}
    return run(SolverVerifier(score="math", **args), TASK, llm, agents=specs, faults=FaultSpec(retries=0))


@pytest.mark.parametrize(
    ("solver", "verifier", "reward", "acts"),
    [
        (RIGHT, APPROVE, 1.0, 2),
        ([WRONG, RIGHT], REJECT, 1.0, 3),
        ([RIGHT, WRONG], REJECT, 0.0, 3),
        (WRONG, APPROVE, 0.0, 2),
        ("no box", REJECT, 0.0, 3),
    ],
)
def test_the_last_proposal_is_graded(solver, verifier, reward, acts):
    session = play(solver, verifier)
    assert session.team_reward == reward and len(session.replies) == acts


def test_a_penalty_lands_on_the_malformed_act_alone():
    scores = [row.reward.score for row in play([RIGHT, "no box"], REJECT).rows()]
    assert scores == pytest.approx([0.0, 0.0, -0.1])
    assert [row.reward.score for row in play(RIGHT, "hm").rows()] == pytest.approx([1.0, 0.9, 1.0])


def test_without_a_verdict_reward_a_review_has_only_the_team_reward():
    assert [row.reward.score for row in play([WRONG, RIGHT], REJECT).rows()] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("solver", "verifier", "earned"),
    [(RIGHT, APPROVE, 0.3), (WRONG, REJECT, 0.3), (RIGHT, REJECT, None), (WRONG, APPROVE, None), (WRONG, "hm", None)],
)
def test_a_right_verdict_earns_its_own_reward(solver, verifier, earned):
    session = play(solver, verifier, verdict_reward=0.3)
    assert session.replies[1].reward == earned
    assert session.info["right_verdicts"] == float(earned is not None)
    assert session.replies[0].reward is None


def test_more_rounds_mean_more_reviews():
    session = play(WRONG, REJECT, max_rounds=4)
    assert [reply.agent for reply in session.replies] == ["solver", "verifier"] * 3 + ["solver"]
    assert session.info == {"reviews": 3, "acc": 0.0, "right_verdicts": 1.0, "unchecked": 0.0}
    assert session.outcome.verdicts == {"verifier": [(False, False)] * 3}
    assert session.reported == {**session.info, "verdicts": session.outcome.verdicts}, "rows and records have both"


@pytest.mark.parametrize(
    ("solver", "verifier", "verdicts"),
    [
        (RIGHT, APPROVE, [(True, True)]),
        ([WRONG, RIGHT], REJECT, [(False, False)]),
        (RIGHT, REJECT, [(False, True)]),
        (WRONG, "hm", [(None, False)]),
    ],
)
def test_a_verdict_is_declared_with_the_truth_of_the_proposal_it_is_about(solver, verifier, verdicts):
    assert play(solver, verifier).outcome.verdicts == {"verifier": verdicts}


def test_an_answer_that_cannot_be_checked_is_counted_as_such():
    session = play("\\boxed{9^{9^{9^{9}}}}", APPROVE)
    assert session.team_reward == 0.0 and session.info["unchecked"] == 1.0


HANGING = "\\boxed{9^{9^{9^{9}}}}"


@pytest.mark.parametrize("verdict", [APPROVE, REJECT])
def test_a_verdict_on_an_unchecked_proposal_has_no_reward_and_is_not_counted(verdict):
    session = play([HANGING, RIGHT], verdict, verdict_reward=0.3)
    assert session.replies[1].reward is None
    assert session.outcome.verdicts == {"verifier": []} and "right_verdicts" not in session.info
    assert session.info["unchecked"] == (1.0 if verdict is APPROVE else 0.5)


def test_without_a_review_there_is_no_share_of_right_verdicts():
    session = play(RIGHT, APPROVE, max_rounds=1)
    assert session.info["reviews"] == 0 and "right_verdicts" not in session.info


@pytest.mark.parametrize("box", ["$", ".", "\\,"])
def test_a_box_that_holds_no_answer_is_malformed(box):
    session = play(f"\\boxed{{{box}}}", APPROVE)
    assert session.replies[0].malformed and session.team_reward == 0.0


def test_a_reward_of_verdicts_needs_a_grader():
    with pytest.raises(ConfigError, match=r"verdict_reward=0\.5 with score=verl"):
        SolverVerifier(verdict_reward=0.5)
