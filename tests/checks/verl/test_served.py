from __future__ import annotations

from verl_mas.checks.verl import served
from verl_mas.checks.verl.place import run_on
from verl_mas.config.compose import compose
from verl_mas.config.verl_settings import ATTENTION
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.hardware import parse_gpus


def test_an_engine_and_an_attention_that_are_not_installed_are_refused_unless_the_run_is_on_another_machine(make):
    gpus = {"trainer__device": "cuda", "actor_rollout_ref__rollout__name": "sglang"}
    gpus["actor_rollout_ref__model__override_config__attn_implementation"] = "flash_attention_2"
    engine, attention = served.check_installed(make(**gpus, ray_kwargs__ray_init__num_gpus=0))
    assert isinstance(engine, ConfigError) and "sglang is not installed" in engine.value
    assert isinstance(attention, ConfigError) and "attn_implementation=sdpa" in attention.fix
    with run_on(parse_gpus("8x80")):
        for problem in served.check_installed(make(**gpus)):
            assert isinstance(problem, ConfigWarning) and "on this machine; the run is on 8 GPUs" in problem.reason
    assert "sdpa" in problem.fix, "what to do there"


def test_the_fix_for_a_missing_flash_attn_can_be_pasted_into_any_command(monkeypatch):
    monkeypatch.setattr(served, "find_spec", lambda name: name != "kernels" and name != "flash_attn")
    for command in (
        ["+mas=single", "actor_rollout_ref.rollout.name=transformers"],
        ["+recipe=math/shared", f"{ATTENTION}=flash_attention_2"],
    ):
        config = compose(command)
        (error,) = served.check_installed(config)
        fix = error.fix.removeprefix("set ").partition(",")[0]
        assert list(served.check_installed(compose([*command, fix]))) == []


def test_an_engine_without_an_extra_of_ours_is_not_offered_one(make):
    gpus = {"trainer__device": "cuda", "ray_kwargs__ray_init__num_gpus": 0}
    (error,) = served.check_installed(make(**gpus, actor_rollout_ref__rollout__name="trtllm"))
    assert error.fix.startswith("install tensorrt_llm, or set")
