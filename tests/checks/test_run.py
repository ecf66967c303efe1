from __future__ import annotations

import pytest

from verl_mas.checks import run
from verl_mas.checks.run import check_run, check_team, exit_on_error, finalize_team
from verl_mas.errors import ConfigError, ConfigErrors


def test_a_refusal_ends_the_run_without_a_traceback():
    with pytest.raises(SystemExit) as ended, exit_on_error():
        raise ConfigError("x=1", rule="x is 2", fix="set x=2")
    assert str(ended.value) == "verl-mas: x=1\n  rule: x is 2\n  fix:  set x=2"


def test_any_other_exception_ends_the_run_with_its_traceback():
    with pytest.raises(SystemExit, match="raised KeyError") as ended, exit_on_error():
        raise KeyError("pool")
    assert 'raise KeyError("pool")' in str(ended.value)


def test_the_machine_the_team_and_every_policys_model_and_engine_are_reported_in_one_call(two, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "gpu")
    overrides = [{"model": {"path": "/nowhere"}}, {"rollout": {"name": "sglangg"}}]
    config = two(mas__policies={name: {"overrides": o} for name, o in zip("ab", overrides, strict=True)})
    config.mas.updates_per_step = 64
    finalize_team(config)
    with pytest.raises(ConfigErrors) as raised:
        check_team(config)
    refused = [error.value for error in raised.value.errors]
    assert refused[0] == "VERL_PLATFORM=gpu"
    assert {"actor_rollout_ref.model.path=/nowhere", "actor_rollout_ref.rollout.name=sglangg"} < set(refused)
    assert "policy a: 64 optimiser steps for 32 sessions per training step" in refused


def test_a_mistake_that_policies_share_is_reported_once(two):
    with pytest.raises(ConfigError) as raised:
        check_team(two(actor_rollout_ref__model__path="/nowhere"))
    assert raised.value.value == "actor_rollout_ref.model.path=/nowhere"


def test_an_interpolation_of_a_missing_key_is_one_error(two):
    with pytest.raises(ConfigError, match="Interpolation key 'nowhere' not found") as raised:
        finalize_team(two(mas__updates_per_step="${nowhere}"))
    assert "Traceback" not in str(raised.value)


def test_a_run_without_a_team_reports_all_errors(make):
    config = make(actor_rollout_ref__model__path="/nowhere", actor_rollout_ref__rollout__name="sglangg")
    config.ray_kwargs.ray_init.num_cpus = 1
    with pytest.raises(ConfigErrors) as raised:
        check_run(config)
    assert len(raised.value.errors) == 3


def test_an_exception_in_a_check_is_an_error_with_its_traceback(two, monkeypatch):
    monkeypatch.setattr(run, "check_checkpoint", lambda config, mas: (1 / 0 for _ in [0]))
    with pytest.raises(ConfigError, match=r"a check raised ZeroDivisionError(?s:.)*Traceback"):
        check_team(two())
