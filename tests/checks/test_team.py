from __future__ import annotations

from dataclasses import replace

import pytest

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.learning import check_learning
from verl_mas.checks.team import check_estimator, validate
from verl_mas.config import load
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigErrors
from verl_mas.registry import Registry
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.commit import CommitRule

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


def test_an_estimator_needs_columns_that_rows_have(make, monkeypatch):
    mistyped = replace(ESTIMATORS["agent_grpo"], needs=("policy", "local_reward", "reward"))
    monkeypatch.setattr("verl_mas.checks.team.ESTIMATORS", {"agent_grpo": mistyped})
    (error,) = check_estimator(Run.of(make()))
    assert error.value == "estimator agent_grpo needs 'reward'" and "team_reward" in error.fix


def test_a_commit_rule_that_chooses_a_place_past_the_end_is_refused(make, monkeypatch):
    rules = Registry[CommitRule]("commit rule", group="none")
    rules.register("worst")(CommitRule(lambda scores, temperature, rng: len(scores)))
    monkeypatch.setattr("verl_mas.checks.team.COMMIT_RULES", rules)
    with pytest.raises(ConfigError, match="commit=worst chooses 4 of 4 candidates"):
        validate(make("planner_executor", **TREES, mas__branch__commit="worst"))


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
        mas__policies={"a": {"overrides": {"actor": {"optimm": 1}, "modell": {}}}, "b": {}},
        actor_rollout_ref__rollout__tensor_model_parallel_size=2,
        mas__updates_per_step=64,
    )
    with pytest.raises(ConfigErrors) as refused:
        validate(config)
    size = "rollout.tensor_model_parallel_size=2 with rollout.name=transformers"
    batch = "data.train_batch_size=8 with actor_rollout_ref.rollout.n=4"
    assert [error.value for error in refused.value.errors] == [
        "trainer.use_v1=False",
        "mas.policies.a.overrides.actor.optimm is not a setting",
        "mas.policies.a.overrides.modell is not a setting",
        "algorithm.adv_estimator=grpo",
        "agent verifier acts on policy c",
        "mas.policies.b is used by no agent",
        *(f"policy {name}: {value}" for name in "ab" for value in (size, batch)),
        *(f"policy {name}: an engine replica of 2 GPUs on a pool of 1" for name in "ab"),
    ]


def test_a_policy_that_learns_in_one_of_its_places_is_not_called_idle(two):
    def idle(**swap):
        agents = {"solver": {"policy": "a", "trainable": False}, "verifier": {"policy": "b"}}
        config = two(mas__agents=agents, mas__swap=swap)
        mas = load(config.mas)
        found = check_learning(Run(config, mas), resolve(mas.workflow), agents_of(mas))
        return [str(problem.value) for problem in found]

    assert idle(agents=[], every=5) == ["mas.policies.a: every agent on it has trainable=false"]
    assert idle(agents=["solver", "verifier"], every=5) == []


def test_a_policy_of_probes_alone_is_called_idle(make):
    rated = {"settings": {"score": "math"}}
    policies, agents = {"main": {}, "judge": {}}, {"rater": {"policy": "judge"}}
    config = make("team", mas__workflow={"name": "rated", "args": rated}, mas__policies=policies, mas__agents=agents)
    mas = load(config.mas)
    found = [str(problem.value) for problem in check_learning(Run(config, mas), resolve(mas.workflow), agents_of(mas))]
    assert any("mas.policies.judge" in value and "never trained on (rater)" in value for value in found)


def test_a_program_has_neither_candidates_nor_tools_of_the_configuration(make):
    program = {"command": ["sh"], "agents": ["solver", "critic"]}
    config = make(
        "program",
        algorithm__adv_estimator="at_grpo",
        mas__workflow__args=program,
        mas__agents={"solver": {"tools": ["calc"]}},
    )
    with pytest.raises(ConfigErrors) as refused:
        validate(config)
    found = str(refused.value)
    assert "this is a workflow which does not branch" in found
    assert "mas.agents.solver.tools" in found and "gives its agents tools in its requests" in found
