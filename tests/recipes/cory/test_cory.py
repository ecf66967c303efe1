"""A pioneer and an observer."""

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import RIGHT, WRONG, play, prompts_of

from verl_mas.config.hydra.recipe.cory.team import Cory


@pytest.mark.parametrize(
    ("pioneer", "observer", "reward", "acc"),
    [(RIGHT, RIGHT, 2.0, 1.0), (WRONG, RIGHT, 1.0, 0.0), (RIGHT, "no box", 1.0, 1.0), (WRONG, WRONG, 0.0, 0.0)],
)
def test_both_earn_the_sum_and_the_pioneers_answer_is_the_teams(pioneer, observer, reward, acc):
    session, llm = play(Cory(), {"pioneer": pioneer, "observer": observer})
    assert session.team_reward == reward and session.info["acc"] == acc and session.answer == pioneer
    assert [row.reward.team for row in session.rows()] == [reward, reward]
    assert pioneer not in str(llm.requests[0].messages)
    assert f"A reference, which may be wrong:\n{pioneer}" in prompts_of(llm, "observer")[0]
