from __future__ import annotations

import pytest

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import every_rule
from verl_mas.checks.run import validate
from verl_mas.errors import ConfigErrors

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


def test_errors_of_every_kind_are_reported_in_one_call(two):
    config = two(
        trainer__use_v1=False,
        algorithm__adv_estimator="grpo",
        mas__agents={"solver": {"policy": "a"}, "verifier": {"policy": "c"}},
        actor_rollout_ref__rollout__tensor_model_parallel_size=2,
        mas__updates_per_step=64,
    )
    with pytest.raises(ConfigErrors) as refused:
        validate(config)
    found = [error.value for error in refused.value.errors]
    size = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    assert {
        "trainer.use_v1=False",
        "algorithm.adv_estimator=grpo",
        "agent verifier acts on policy c",
        "mas.policies.b is used by no agent",
        "policy a: 64 optimiser steps for 32 sessions",
        size,
    } <= set(found)


def test_unknown_keys_of_overrides_are_refused_together(two):
    config = two(mas__policies={"a": {"overrides": {"actor": {"optimm": 1}, "modell": {}}}, "b": {}})
    with pytest.raises(ConfigErrors) as refused:
        validate(config)
    assert [error.value for error in refused.value.errors] == [
        "mas.policies.a.overrides.actor.optimm is not a setting",
        "mas.policies.a.overrides.modell is not a setting",
    ]


def test_a_policy_that_learns_in_one_of_its_places_is_not_called_idle(two):
    def idle(**swap):
        agents = {"solver": {"policy": "a", "trainable": False}, "verifier": {"policy": "b"}}
        run = ExaminedRun.of(two(mas__agents=agents, mas__swap=swap))
        return [problem.value for problem in every_rule()["somebody_learns"].problems(run)]

    assert idle(agents=[], every=5) == ["mas.policies.a: every agent on it has trainable=false"]
    assert idle(agents=["solver", "verifier"], every=5) == []
