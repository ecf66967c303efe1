from __future__ import annotations

import re

import pytest

from verl_mas.checks.team import validate
from verl_mas.errors import ConfigError


@pytest.mark.parametrize("team", ["single", "solver_verifier", "ensemble"])
def test_every_shipped_team_is_accepted_as_it_stands(make, team):
    assert list(validate(make(team)).policies) == ["main"]


def test_a_team_on_several_policies_is_accepted(two):
    assert list(validate(two()).policies) == ["a", "b"]


def test_at_grpo_takes_a_team_that_branches_or_several_sessions_of_it(make):
    branching = {"algorithm__adv_estimator": "at_grpo", "actor_rollout_ref__rollout__n": 1}
    assert validate(make("planner_executor", **branching, mas__branch__k=4))
    assert validate(make("planner_executor", **{**branching, "actor_rollout_ref__rollout__n": 4}, mas__branch__k=1))
    with pytest.raises(ConfigError, match="one session a task"):
        validate(make("planner_executor", **branching, mas__branch__k=1))


def test_a_reward_of_an_act_that_would_count_nothing_is_refused(make):
    paid = {"mas__workflow__args": {"score": "math", "verdict_reward": 0.3}}
    assert validate(make("solver_verifier", **paid))
    with pytest.raises(ConfigError, match=r"verdict_reward=0\.3 with mas\.reward\.local=0\.0(?s:.)*preset=sum"):
        validate(make("solver_verifier", **paid, mas__reward__preset="dr_mas"))


REMOTE = {"base_url": "http://localhost:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mas__agents__solver__policy": "c"}, "an agent acts on one of mas.policies"),
        ({"mas__policies__c": {}}, "mas.policies.c is used by no agent"),
        ({"mas__policies__a__pool": "fast"}, "a policy lives on one of mas.pools"),
        ({"mas__pools__fast": {}}, "mas.pools.fast has no policy"),
        ({"mas__pools__shared": {"n_gpus_per_node": 2}}, "Ray will have 1"),
        ({"ray_kwargs__ray_init__num_cpus": 4}, "Ray CPUs, Ray will have 4"),
        ({"actor_rollout_ref__rollout__tensor_model_parallel_size": 2}, "divides the GPUs of the pool"),
        ({"mas__policies__a__overrides": {"actor": {"optimm": 1}}}, "did you mean 'optim'?"),
        ({"mas__policies__a__overrides": {"actor": {"optim": {"lrr": 1}}}}, "did you mean 'lr'?"),
        ({"mas__policies__a__overrides": {"actor": {"optim": 1}}}, "a section, not a value"),
        ({"trainer__v1__trainer_mode": "sync"}, "trainer.v1.trainer_mode=sync"),
        ({"trainer__use_v1": False}, "V1 trainer"),
        ({"algorithm__adv_estimator": "gae"}, "a critic would need one value model per policy"),
        ({"critic__enable": True}, "a critic would need one value model per policy"),
        ({"algorithm__adv_estimator": "agent_grop"}, "did you mean 'agent_grpo'?"),
        ({"algorithm__adv_estimator": "at_grpo"}, "which never branches"),
        ({"algorithm__use_kl_in_reward": True}, "use_kl_loss=True"),
        ({"mas__updates_per_step": 64}, "64 optimiser steps on 32 sessions"),
        ({"mas__policies": {"a": {"trainable": False}, "b": {"trainable": False}}}, "no policy is trainable"),
        ({"mas__workflow__name": "solver_verifer"}, "did you mean 'solver_verifier'?"),
        ({"mas__branch__commit": "gredy"}, "mas.branch.commit=gredy\n"),
        ({"mas__plugins": ["no_such_file.py"]}, "mas.plugins=no_such_file.py"),
        ({"mas__advantage__epz": 1}, "mas.advantage.epz"),
        ({"mas__policies__a__remote": {"model": "m"}}, "has no base_url"),
        ({"mas__policies__a__remote": {**REMOTE, "key": "x"}}, "mas.policies.a.remote.key"),
        ({"mas__policies__a__remote": {**REMOTE, "api_key_env": "NO_SUCH_KEY"}}, "export NO_SUCH_KEY"),
        (
            {"mas__policies__a": {"remote": REMOTE, "overrides": {"model": {"path": "/x"}}}},
            "no model, engine or optimiser here",
        ),
        ({"mas__skip_zero_advantage": True, "actor_rollout_ref__actor__use_kl_loss": True}, "use_kl_loss=True"),
        ({"mas__skip_zero_advantage": True, "actor_rollout_ref__actor__entropy_coeff": 0.1}, "entropy_coeff=0.1"),
        (
            {
                "mas__skip_zero_advantage": True,
                "mas__policies__b__overrides": {"actor": {"policy_loss": {"loss_mode": "clip-cov"}}},
            },
            "loss_mode=clip-cov of policy b",
        ),
        (
            {"mas__policies__b__overrides": {"actor": {"use_dynamic_bsz": False, "ppo_mini_batch_size": 64}}},
            "policy b:",
        ),
        ({"actor_rollout_ref__actor__checkpoint__async_save": True}, "async_save"),
    ],
)
def test_what_cannot_run_is_refused_before_ray_starts(two, settings, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        validate(two(**settings))
    assert refused.value.rule and refused.value.fix


@pytest.mark.parametrize("name", ["a/b", "a b", "1st", "rows", "timing", "ä"])
def test_a_name_that_keys_cannot_carry_is_refused(make, name):
    config = make()
    config.mas.policies = {name: {}}
    with pytest.raises(ConfigError, match="names are part of metric names"):
        validate(config)


def test_engines_that_are_awake_together_share_the_memory(two):
    engine = {"actor_rollout_ref__rollout__name": "vllm", "actor_rollout_ref__rollout__gpu_memory_utilization": 0.6}
    with pytest.raises(ConfigError, match=re.escape("a 0.6 + b 0.6 = 1.2")):
        validate(two(**engine))
    time_sliced = {**engine, "mas__pools__shared": {"serving": "phases"}}
    with pytest.raises(ConfigError, match="free_cache_engine=False"):
        validate(two(**time_sliced))
    validate(two(**time_sliced, actor_rollout_ref__rollout__free_cache_engine=True))


def test_pools_of_their_own_need_gpus_of_their_own(two):
    pools = {"mas__pools": {"fast": {"n_gpus_per_node": 1}}, "mas__policies__b__pool": "fast"}
    with pytest.raises(ConfigError, match="the pools ask for 2 GPUs, Ray will have 1"):
        validate(two(**pools))
    validate(two(**pools, ray_kwargs__ray_init__num_gpus=2))


def test_a_frozen_or_remote_policy_beside_a_trained_one_is_accepted(two, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", "secret")
    validate(two(mas__policies__b__trainable=False))
    validate(two(mas__policies__b__remote={**REMOTE, "api_key_env": "TEAM_KEY", "timeout": 5}))
