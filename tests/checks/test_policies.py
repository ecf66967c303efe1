from __future__ import annotations

import pytest

from verl_mas.checks.team import validate

REMOTE = {"base_url": "http://localhost:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"mas__policies__a__overrides": {"actor": {"optimm": 1}}},
            "did you mean mas.policies.a.overrides.actor.",
        ),
        ({"mas__policies__a__overrides": {"actor": {"optim": {"lrr": 1}}}}, "overrides.actor.optim.lr"),
        ({"mas__policies__a__overrides": {"actor": {"optim": 1}}}, "a section, not a value"),
        ({"mas__updates_per_step": 64}, "64 optimiser steps for 32 sessions"),
        ({"mas__policies__a__remote": {"model": "m"}}, "base_url"),
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
                "mas__policies__b__overrides": {"actor": {"policy_loss": {"loss_mode": "clip_cov"}}},
            },
            "loss_mode=clip_cov of policy b",
        ),
        (
            {"mas__policies__b__overrides": {"actor": {"use_dynamic_bsz": False, "ppo_mini_batch_size": 64}}},
            "policy b:",
        ),
        ({"actor_rollout_ref__actor__checkpoint__async_save": True}, "async_save"),
        (
            {"mas__policies__b__overrides": {"actor": {"optim": {"lr": "fast"}}}},
            "mas.policies.b.overrides.actor.optim.lr='fast'",
        ),
        ({"actor_rollout_ref__actor__ppo_mini_batch_size": "abc"}, "ppo_mini_batch_size='abc'"),
    ],
)
def test_a_policy_that_cannot_be_trained_or_served_is_refused(refused, settings, says):
    errors = refused(**settings)
    assert says in str(errors[0]) and errors[0].rule and errors[0].fix
    assert "Traceback" not in str(errors)


def test_every_mistyped_override_is_named(refused):
    overrides = {"actor": {"optim": {"lrr": 1}, "ppo_epoch": 2}, "refs": {}}
    paths = [error.value for error in refused(mas__policies__a__overrides=overrides)]
    assert paths[:3] == [
        f"mas.policies.a.overrides.{key} is not a setting" for key in ("actor.optim.lrr", "actor.ppo_epoch", "refs")
    ]


def test_a_frozen_or_remote_policy_beside_a_trained_one_is_accepted(two, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", "secret")
    validate(two(mas__policies__b__trainable=False))
    validate(two(mas__policies__b__remote={**REMOTE, "api_key_env": "TEAM_KEY", "timeout": 5}))
