from __future__ import annotations

from verl_mas.checks.team import validate

REMOTE = {"base_url": "http://localhost:1/v1", "model": "m"}


def test_what_verl_refuses_of_one_policy_is_refused_with_its_name(refused):
    (error,) = refused(mas__policies__b__overrides={"actor": {"use_dynamic_bsz": False, "ppo_mini_batch_size": 64}})
    assert error.value.startswith("policy b: ") and "Traceback" not in str(error)


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
