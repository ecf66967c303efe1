from __future__ import annotations

import pytest

from verl_mas.checks.learning import check_learning
from verl_mas.checks.team import validate
from verl_mas.config import load
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError
from verl_mas.workflow.base import agents_of, resolve


@pytest.mark.parametrize("team", ["single", "solver_verifier", "ensemble"])
def test_every_shipped_team_is_accepted_without_changes(make, team):
    assert list(validate(make(team)).policies) == ["main"]


def test_a_team_on_several_policies_is_accepted(two):
    assert list(validate(two()).policies) == ["a", "b"]


def test_errors_of_every_kind_are_reported_in_one_call(refused):
    errors = refused(
        trainer__use_v1=False,
        algorithm__adv_estimator="grpo",
        mas__agents={"solver": {"policy": "a"}, "verifier": {"policy": "c"}},
        mas__policies={"a": {"overrides": {"actor": {"optimm": 1}, "modell": {}}}, "b": {}},
        actor_rollout_ref__rollout__tensor_model_parallel_size=2,
        mas__updates_per_step=64,
    )
    assert [error.value for error in errors] == [
        "trainer.use_v1=False",
        "mas.policies.a.overrides.actor.optimm is not a setting",
        "mas.policies.a.overrides.modell is not a setting",
        "algorithm.adv_estimator=grpo",
        "agent verifier acts on policy c",
        "mas.policies.b is used by no agent",
        "policy a: an engine replica of 2 GPUs on a pool of 1",
        "policy b: an engine replica of 2 GPUs on a pool of 1",
        "policy a: 64 optimiser steps for 32 sessions per training step",
        "policy b: 64 optimiser steps for 32 sessions per training step",
    ]


def test_what_does_not_depend_on_the_team_is_reported_with_a_block_that_cannot_be_read(refused):
    errors = refused(trainer__use_v1=False, mas__polices={})
    assert [error.value for error in errors] == ["trainer.use_v1=False", "mas.polices is not a setting"]


def test_every_agent_that_the_workflow_does_not_have_is_named(refused):
    errors = refused(mas__agents={"slover": {"policy": "a"}, "verifer": {"policy": "b"}})
    assert [error.value for error in errors] == ["mas.agents.slover", "mas.agents.verifer"]


def test_at_grpo_takes_a_team_that_branches_or_several_sessions_of_it(make):
    branching = {"algorithm__adv_estimator": "at_grpo", "actor_rollout_ref__rollout__n": 1}
    assert validate(make("planner_executor", **branching, mas__branch__k=4))
    assert validate(make("planner_executor", **{**branching, "actor_rollout_ref__rollout__n": 4}, mas__branch__k=1))


def test_an_act_reward_of_weight_0_is_refused(make):
    paid = {"mas__workflow__args": {"score": "math", "verdict_reward": 0.3}}
    assert validate(make("solver_verifier", **paid))
    with pytest.raises(ConfigError, match=r"verdict_reward=0\.3 with mas\.reward\.local=0\.0(?s:.)*preset=sum"):
        validate(make("solver_verifier", **paid, mas__reward__preset="dr_mas"))


def test_a_policy_that_learns_in_one_of_its_places_is_not_called_idle(two):
    def idle(**swap):
        agents = {"solver": {"policy": "a", "trainable": False}, "verifier": {"policy": "b"}}
        config = two(mas__agents=agents, mas__swap=swap)
        mas = load(config.mas)
        found = check_learning(Run(config, mas), resolve(mas.workflow), agents_of(mas))
        return [str(problem.value) for problem in found]

    assert idle(agents=[], every=5) == ["mas.policies.a: every agent on it has trainable=false"]
    assert idle(agents=["solver", "verifier"], every=5) == []


@pytest.mark.parametrize("chosen", [{"algorithm__adv_estimator": "agent_rae"}, {"mas__advantage": {"shrinkage": 2}}])
def test_one_session_per_task_is_enough_with_running_scores(make, refused, chosen):
    validate(make("single", actor_rollout_ref__rollout__n=1, **chosen))
