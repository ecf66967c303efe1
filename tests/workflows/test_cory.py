"""A pioneer and an observer."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.cory import Cory

TASK = Task([{"role": "user", "content": "What is a half?"}], ground_truth="0.5")
RIGHT, WRONG = "so \\boxed{0.5}", "so \\boxed{2}"


@pytest.mark.parametrize(
    ("pioneer", "observer", "reward", "acc"),
    [(RIGHT, RIGHT, 2.0, 1.0), (WRONG, RIGHT, 1.0, 0.0), (RIGHT, "no box", 1.0, 1.0), (WRONG, WRONG, 0.0, 0.0)],
)
def test_both_earn_the_sum_and_the_pioneers_answer_is_the_teams(pioneer, observer, reward, acc):
    llm = ScriptedLLM({"pioneer": pioneer, "observer": observer})
    session = run(Cory(), TASK, llm)
    assert session.team_reward == reward and session.info["acc"] == acc and session.answer == pioneer
    assert [row.reward.team for row in session.rows()] == [reward, reward]
    assert pioneer not in str(llm.requests[0].messages)
    assert f"A reference, which may be wrong:\n{pioneer}" in llm.requests[1].messages[-1]["content"]
