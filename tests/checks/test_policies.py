from __future__ import annotations

import pytest

from verl_mas.checks.team import validate

REMOTE = {"base_url": "http://localhost:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"mas__policies__a": {"remote": REMOTE, "overrides": {"model": {"path": "/x"}}}},
            "no model, engine or optimiser here",
        ),
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
