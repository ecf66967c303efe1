from __future__ import annotations

import pytest

from verl_mas import plugin
from verl_mas.checks.hydra import TeamCheck


def test_a_team_that_cannot_run_ends_the_driver(two):
    """Hydra swallows exceptions of callbacks, but not an exit."""
    with pytest.raises(SystemExit, match="used by no agent"):
        TeamCheck().on_job_start(two(mas__policies__c={}))


def test_a_team_that_can_run_passes(two):
    TeamCheck().on_job_start(two())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [({"model": {"path": "/nowhere"}}, "path=/nowhere"), ({"rollout": {"name": "sglangg"}}, "did you mean 'sglang'")],
)
def test_every_policys_model_and_engine_are_looked_at(two, overrides, said):
    config = two(mas__policies__b__overrides=overrides)
    TeamCheck().on_run_start(config)
    with pytest.raises(SystemExit, match=said):
        TeamCheck().on_job_start(config)


def test_a_run_without_the_plugin_ends_with_the_reason(two, monkeypatch):
    monkeypatch.setattr(plugin, "_active", False)
    with pytest.raises(SystemExit, match="has not loaded the verl-mas plugin"):
        TeamCheck().on_job_start(two())


def test_followers_are_written_where_the_job_will_find_them(two):
    config = two(mas__policies__a__overrides={"actor": {"strategy": "fsdp"}})
    TeamCheck().on_run_start(config)
    assert config.mas.policies.a.overrides.ref.strategy == "fsdp"
    TeamCheck().on_job_start(config)


def test_in_a_multirun_followers_must_be_written_by_hand(two):
    config = two(mas__policies__a__overrides={"actor": {"strategy": "fsdp"}})
    with pytest.raises(SystemExit, match=r"mas\.policies\.a\.overrides\.ref\.strategy=fsdp"):
        TeamCheck().on_job_start(config)


def test_another_trainer_is_none_of_our_business(two):
    TeamCheck().on_job_start(two(trainer__v1__trainer_mode="sync"))


def test_where_every_policy_has_a_model_verl_reads_the_data_with_the_first(two):
    config = two()
    config.mas.policies = {name: {"overrides": {"model": {"path": f"/{name}"}}} for name in ("a", "b")}
    TeamCheck().on_run_start(config)
    assert config.actor_rollout_ref.model.path == "/a"


def test_a_later_policy_may_have_the_model_that_the_base_had(two):
    config = two()
    paths = {"a": "hub/other", "b": config.actor_rollout_ref.model.path}
    config.mas.policies = {name: {"overrides": {"model": {"path": path}}} for name, path in paths.items()}
    TeamCheck().on_run_start(config)
    TeamCheck().on_job_start(config)
    assert config.mas.policies.b.overrides.rollout.prometheus.served_model_name == paths["b"]
