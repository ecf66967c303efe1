from __future__ import annotations

import pytest

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.checks.run import validate

ROLLOUT = "actor_rollout_ref__rollout__"
TREES = {"algorithm__adv_estimator": "at_grpo", f"{ROLLOUT}n": 1, "mas__branch__k": 4}
REMOTE = {"base_url": "http://localhost:1/v1", "model": "m", "api_key_env": "PATH", "timeout": 5}


@pytest.mark.parametrize(
    ("team", "settings"),
    [
        ("single", {}),
        ("solver_verifier", {}),
        ("ensemble", {}),
        ("planner_executor", TREES),
        ("planner_executor", {**TREES, f"{ROLLOUT}n": 4, "mas__branch__k": 1}),
        ("solver_verifier", {"mas__workflow__args": {"score": "math", "verdict_reward": 0.3}}),
        # One session per task is enough with running scores.
        ("single", {f"{ROLLOUT}n": 1, "algorithm__adv_estimator": "agent_rae"}),
        ("single", {f"{ROLLOUT}n": 1, "mas__advantage": {"shrinkage": 2}}),
    ],
)
def test_a_team_on_one_policy_is_accepted(make, team, settings):
    assert list(validate(make(team, **settings)).policies) == ["main"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mas__policies__b__trainable": False},
        {"mas__policies__b__remote": REMOTE},
    ],
)
def test_a_team_on_several_policies_is_accepted(two, settings):
    assert list(validate(two(**settings)).policies) == ["a", "b"]


def test_a_policy_that_learns_in_one_of_its_places_is_not_called_idle(two):
    def idle(**swap):
        agents = {"solver": {"policy": "a", "trainable": False}, "verifier": {"policy": "b"}}
        run = ExaminedRun.of(two(mas__agents=agents, mas__swap=swap))
        return [problem.value for problem in every_rule()["somebody_learns"].problems(run)]

    assert idle(agents=[], every=5) == ["mas.policies.a: every agent on it has trainable=false"]
    assert idle(agents=["solver", "verifier"], every=5) == []
