from __future__ import annotations

import pytest

from verl_mas.gym.puzzles.puzzle import row
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import run

ROW = row("plan_path", 0, "train", {"size": 5, "min_distance": 4})


@pytest.fixture
def play(evidence):
    def run_once(**args):
        workflow = evidence("uneven").UnevenRewards(moves=1, text="compact", max_turns=40, **args)
        task = Task(ROW["prompt"], extra_info=ROW["extra_info"])
        return run(workflow, task, ScriptedLLM(["U", "L", "D", "R"]))

    return run_once


def test_the_factor_multiplies_the_planners_own_reward_alone(play):
    plain, uneven = play(), play(factor=10.0)
    for one, other in zip(plain.replies, uneven.replies, strict=True):
        assert other.reward == (10.0 if one.agent == "planner" else 1.0) * one.reward
    assert any(reply.reward for reply in plain.replies) and plain.team_reward == uneven.team_reward
