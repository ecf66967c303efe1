"""What the corpus of wrong commands does not show: what is accepted, and models that are not tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_mas.checks.adapters import (
    LENGTHS,
    OWN,
    check_adapter,
    check_adapters,
    check_base,
    check_peft,
    check_sglang_targets,
)
from verl_mas.config import load
from verl_mas.config.merge import materialize_interpolations
from verl_mas.config.run import Run
from verl_mas.errors import ConfigWarning

TWO = {"a": {"adapter_of": "main"}, "b": {"adapter_of": "main"}}


@pytest.fixture
def view(make):
    """Of the base, with a model of whose folder only config.json is there."""

    def view(folder: Path, fields: dict[str, object], **settings: object):
        (folder / "config.json").write_text(json.dumps(fields))
        path = {"actor_rollout_ref__model__path": str(folder), "actor_rollout_ref__model__lora_rank": 4}
        config = make(mas__policies=TWO, **path, **settings)
        return Run.of(config).view("main").copy()

    return view


def text_of(problems) -> str:
    return "\n".join(map(str, problems))


OWN_SETTINGS = {
    "model": {"lora_rank": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "exclude_modules": "layers.0.*"},
    "actor": {"optim": {"lr": 1e-4, "lr_scheduler_type": "cosine"}, "clip_ratio_high": 0.3, "use_kl_loss": True},
    "rollout": {"temperature": 0.7, "val_kwargs": {"top_p": 0.9}, "response_length": 8},
    "ref": {},
}
OF_BASE = {"model": {"path": "/m"}}


@pytest.mark.parametrize(
    "policies",
    [
        TWO | {"a": {"adapter_of": "main", "overrides": OWN_SETTINGS}},
        {"main": {"trainable": False, "overrides": OF_BASE}, "a": {"adapter_of": "main", "overrides": OF_BASE}},
    ],
)
def test_an_adapter_can_have_settings_of_its_own_and_those_of_its_base(make, policies):
    config = make(mas__policies=policies)
    materialize_interpolations(config, load(config.mas))
    assert not list(check_adapters(Run.of(config)))


def test_what_follows_another_setting_by_interpolation_is_not_refused_beside_it(make):
    own = {"adapter_of": "main", "overrides": {"model": {"path": "/other"}}}
    config = make(mas__policies=TWO | {"a": own})
    materialize_interpolations(config, load(config.mas))
    assert "prometheus" in config.mas.policies.a.overrides.rollout
    (found,) = check_adapters(Run.of(config))
    assert "overrides.model.path=/other" in found.value


def test_every_setting_of_an_adapters_own_is_one_of_verls(make):
    section = make().actor_rollout_ref
    for pattern in (*OWN, *LENGTHS):
        path = pattern.removesuffix("*").removesuffix(".")
        parent, _, key = path.rpartition(".")
        keys = OmegaConf.select(section, parent)
        assert any(str(name).startswith(key) for name in keys), pattern


@pytest.mark.parametrize("fields", [{"num_experts": 8}, {"text_config": {"n_routed_experts": 64}}])
def test_all_linear_does_not_reach_experts(view, tmp_path, fields):
    assert "does not reach" in text_of(check_adapter(view(tmp_path, fields), "a"))
    attention = {"actor_rollout_ref__model__target_modules": ["q_proj"]}
    assert "does not reach" not in text_of(check_adapter(view(tmp_path, fields, **attention), "a"))


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        (["k_proj"], "q_proj, v_proj"),
        (["up_proj", "down_proj"], "gate_proj"),
        (["q_proj", "layers.1.self_attn.v_proj"], "v_proj"),
        (["q_proj", "v_proj", "gate_proj", "down_proj"], ""),
        ("all-linear", ""),
    ],
)
def test_sglang_needs_of_stacked_layers_those_that_it_stacks_the_others_on(make, wanted, missing):
    parts = {"self_attn": "qkv", "mlp": ("gate", "up", "down")}
    names = [f"model.layers.{n}.{name}.{part}_proj" for n in (0, 1) for name, every in parts.items() for part in every]
    config = make(mas__policies=TWO, actor_rollout_ref__model__target_modules=wanted)
    found = list(check_sglang_targets(config, "a", names))
    assert [error.fix for error in found] == ([f"add {missing}"] if missing else [])


def test_a_base_in_float32_on_gpus_is_warned_of(view, tmp_path):
    on_gpus = {"trainer__device": "cuda", "actor_rollout_ref__actor__fsdp_config__mixed_precision": None}
    found = list(check_base(view(tmp_path, {}, **on_gpus), "main", ["a", "b"]))
    assert [type(problem) for problem in found if "model_dtype" in str(problem)] == [ConfigWarning]
    half = {"actor_rollout_ref__actor__fsdp_config__model_dtype": "bf16"}
    assert "model_dtype" not in text_of(check_base(view(tmp_path, {}, **on_gpus, **half), "main", ["a", "b"]))


@pytest.mark.parametrize("weights", [True, "gaussian"])
def test_an_adapter_starts_from_plain_lora_of_its_rank_and_scale(make, tmp_path, weights):
    plain = {"bias": "none", "modules_to_save": None, "rank_pattern": {}, "init_lora_weights": weights}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 16} | plain))
    start = {"actor_rollout_ref__model__lora_adapter_path": str(tmp_path), "actor_rollout_ref__model__lora_rank": 4}
    config = make(mas__policies=TWO, **start)
    assert list(check_adapter(Run.of(config).view("a").config, "a")) == []


@pytest.mark.parametrize(
    ("strategy", "installed", "found"), [("fsdp", "0.21.0", 1), ("fsdp", "0.20.0", 0), ("fsdp2", "0.21.2", 0)]
)
def test_an_adapter_on_fsdp1_is_not_found_by_the_names_of_peft_021(make, monkeypatch, strategy, installed, found):
    monkeypatch.setattr("verl_mas.checks.adapters.version", lambda package: installed)
    config = make(actor_rollout_ref__model__lora_rank=4, actor_rollout_ref__actor__strategy=strategy)
    assert len(list(check_peft(config, "policy main"))) == found
