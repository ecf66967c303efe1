"""A team with a rater, which rates the acts."""

from dataclasses import replace

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import APPROVE, HALF, RIGHT, acts_of, play, prompts_of

from verl_mas.errors import ConfigError
from verl_mas.workflows.rated import Rated

TEAM = {"solver": RIGHT, "verifier": APPROVE}


def rated(rater, task=HALF, **arguments):
    arguments = {"settings": {"score": "math", "verdict_reward": 0.5}, **arguments}
    return play(Rated(**arguments), TEAM | {"rater": rater}, task)


def own(session):
    return [reply.reward for reply in session.replies if not reply.probe]


def test_a_rating_is_added_to_what_the_act_has_of_its_own():
    session, llm = rated('{"1": 0.25, "2": 1}', weight=2.0)
    assert own(session) == [0.5, 0.5 + 2.0] and session.info["unrated"] == 0.0
    assert [row.reward.local for row in session.rows() if row.key] == [0.5, 2.5]
    [prompt] = prompts_of(llm, "rater")
    assert prompt.startswith("What is a half?") and f"[1] solver:\n{RIGHT}\n\n[2] verifier:\n{APPROVE}" in prompt


def test_the_rater_is_in_no_row_and_trains_nothing():
    session, _ = rated('{"1": 0, "2": 0}')
    [verdict] = acts_of(session, "rater")
    assert verdict.probe and not verdict.trainable and len([row for row in session.rows() if row.key]) == 2


@pytest.mark.parametrize("text", ["fine", '{"1": 1}', '{"1": 1, "2": 1.5}', '{"1": "1", "2": 1}'])
def test_ratings_that_cannot_be_read_rate_nothing(text):
    session, _ = rated(text)
    assert own(session) == [0.0, 0.5] and session.info["unrated"] == 1.0
    assert acts_of(session, "rater")[0].malformed


def test_nothing_is_rated_in_validation():
    session, llm = rated("", replace(HALF, validate=True))
    assert own(session) == [None, 0.5] and not prompts_of(llm, "rater") and "unrated" not in session.info


@pytest.mark.parametrize(("of", "verls"), [("single", True), ("solver_verifier", False)])
def test_ratings_do_not_stand_for_the_score_of_verls_reward_function(of, verls):
    settings = {} if verls else {"score": "math"}
    session, _ = play(Rated(of=of, settings=settings), TEAM | {"rater": '{"1": 1, "2": 1}'})
    assert session.outcome.score_answer is verls


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"of": "rated"}, "has no rater of its own"),
        ({"of": "solver_verifer"}, "solver_verifier"),
        ({"settings": {"scores": "math"}}, "did you mean 'score'"),
        ({"weight": -1}, "weight"),
    ],
)
def test_a_team_that_cannot_be_rated_is_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        Rated(**arguments)
