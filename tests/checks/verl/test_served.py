from __future__ import annotations

from verl_mas.checks.verl import served
from verl_mas.config.compose import compose
from verl_mas.config.verl_settings import ATTENTION
from verl_mas.engines import contract


def test_the_fix_for_a_missing_flash_attn_can_be_pasted_into_any_command(monkeypatch):
    monkeypatch.setattr(served, "find_spec", lambda name: name != "kernels" and name != "flash_attn")
    for command in (
        ["+mas=single", "actor_rollout_ref.rollout.name=transformers"],
        ["+recipe=math/shared", f"++{ATTENTION}=flash_attention_2"],
    ):
        config = compose(command)
        (error,) = served.check_installed(config)
        fix = error.fix.removeprefix("set ").partition(",")[0]
        assert list(served.check_installed(compose([*command, fix]))) == []


def test_an_engine_that_verl_cannot_start_is_refused_by_the_cause(monkeypatch):
    monkeypatch.setattr(served, "find_spec", lambda name: True)
    monkeypatch.setattr(contract.Contract, "unstartable", "verl reads the fields of ServerArgs")
    config = compose(["+recipe=math/shared", "actor_rollout_ref.rollout.name=sglang"])
    (error,) = served.check_installed(config)
    assert error.rule == "verl reads the fields of ServerArgs" and "0.5.12 to 0.5.19" in error.fix


def test_an_engine_of_a_version_that_was_not_compared_is_warned_of_with_what_it_lacks(monkeypatch):
    monkeypatch.setattr(served, "find_spec", lambda name: True)
    monkeypatch.setattr(contract, "installed_version", lambda name: "0.99")
    (warning,) = served.check_installed(compose(["+recipe=math/shared"]))
    assert warning.value == "vllm 0.99 is installed"
    assert "with 0.24.0 to 0.31.0; of this one: vllm." in warning.reason and "vllm==0.24.0" in warning.fix
