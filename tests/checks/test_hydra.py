import sys

import pytest

from verl_mas import plugin
from verl_mas.checks.hydra import TeamCheck, UseCpu


def test_a_team_that_cannot_run_ends_the_driver(two):
    """Hydra turns exceptions of callbacks into warnings, but not an exit."""
    with pytest.raises(SystemExit, match="used by no agent"):
        TeamCheck().on_job_start(two(mas__policies__c={}))


def test_verls_asynchronous_mode_with_a_team_is_that_of_the_team(two, caplog):
    config = two(trainer__v1__trainer_mode="colocate_async")
    TeamCheck().on_run_start(config)
    assert config.trainer.v1.trainer_mode == "mas_colocate_async"
    assert config.algorithm.rollout_correction.rollout_is == "token" and "+mas/mode=colocate_async" in caplog.text


def test_a_block_that_cannot_be_read_ends_the_driver(two):
    with pytest.raises(SystemExit, match=r"mas\.polices is not a setting") as ended:
        TeamCheck().on_run_start(two(trainer__use_v1=False, mas__polices={}))
    assert "Traceback" not in str(ended.value)


@pytest.mark.usefixtures("own_platform")
def test_a_run_without_the_plugin_ends_with_the_reason(two, warm_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.setattr(plugin, "_active", False)
    for callback in (TeamCheck(), UseCpu()):
        with pytest.raises(SystemExit, match="has not loaded the verl-mas plugin"):
            callback.on_job_start(two())


@pytest.fixture
def own_platform(monkeypatch):
    """Undo the changes of UseCpu to this process after the test."""
    from verl.plugin.platform import get_platform, set_platform

    before = get_platform()
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    yield
    set_platform(before)


@pytest.mark.usefixtures("own_platform")
def test_on_the_cpu_a_team_is_checked_by_its_own_callback(two):
    wrong = {"actor_rollout_ref__model__path": "/nowhere"}
    UseCpu().on_job_start(two(**wrong))
    with pytest.raises(SystemExit, match="path=/nowhere"):
        UseCpu().on_job_start(two(**wrong, trainer__v1__trainer_mode="sync"))


def test_interpolated_settings_are_written_into_the_configuration_of_the_job(two):
    config = two(mas__policies__a__overrides={"actor": {"strategy": "fsdp"}})
    TeamCheck().on_run_start(config)
    assert config.mas.policies.a.overrides.ref.strategy == "fsdp"
    TeamCheck().on_job_start(config)


def test_in_a_multirun_the_user_must_write_interpolated_settings(two):
    config = two(mas__policies__a__overrides={"actor": {"strategy": "fsdp"}})
    with pytest.raises(SystemExit, match=r"mas\.policies\.a\.overrides\.ref\.strategy=fsdp"):
        TeamCheck().on_job_start(config)


def test_a_later_policy_may_have_the_model_of_the_base(two):
    config = two()
    paths = {"a": "hub/other", "b": config.actor_rollout_ref.model.path}
    config.mas.policies = {name: {"overrides": {"model": {"path": path}}} for name, path in paths.items()}
    TeamCheck().on_run_start(config)
    TeamCheck().on_job_start(config)
    assert config.mas.policies.b.overrides.rollout.prometheus.served_model_name == paths["b"]
