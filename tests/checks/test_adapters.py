"""Accepted and refused settings of adapters."""

import json

import pytest
from omegaconf import OmegaConf

from verl_mas.checks.adapters import LENGTHS, OWN, check_adapters
from verl_mas.checks.examined import ExaminedRun
from verl_mas.config import load
from verl_mas.config.merge import materialize_interpolations

RANK = {"actor_rollout_ref__model__lora_rank": 4}
TWO = {"a": {"adapter_of": "main"}, "b": {"adapter_of": "main"}}


@pytest.fixture
def found(make):
    """The problems of two adapters, as a text."""

    def found(**settings):
        run = ExaminedRun.of(make(**{"mas__policies": TWO, **RANK, **settings}))
        return "\n".join(map(str, check_adapters(run)))

    return found


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
    config = make(mas__policies=policies, **RANK)
    materialize_interpolations(config, load(config.mas))
    assert not list(check_adapters(ExaminedRun.of(config)))


def test_what_follows_another_setting_by_interpolation_is_not_refused_beside_it(make):
    own = {"adapter_of": "main", "overrides": {"model": {"path": "/other"}}}
    config = make(mas__policies=TWO | {"a": own}, **RANK)
    materialize_interpolations(config, load(config.mas))
    assert "prometheus" in config.mas.policies.a.overrides.rollout
    (problem,) = check_adapters(ExaminedRun.of(config))
    assert "overrides.model.path=/other" in problem.value


def test_every_setting_that_an_adapter_may_have_exists_in_verl(make):
    section = make().actor_rollout_ref
    for pattern in (*OWN, *LENGTHS):
        path = pattern.removesuffix("*").removesuffix(".")
        parent, _, key = path.rpartition(".")
        keys = OmegaConf.select(section, parent)
        assert any(str(name).startswith(key) for name in keys), pattern


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"actor_rollout_ref__model__lora__merge": True}, "lora.merge=True"),
        ({"actor_rollout_ref__actor__strategy": "fsdp"}, "actor.strategy=fsdp"),
        ({"actor_rollout_ref__model__lora_rank": 0}, "a rank of 1 to"),
        ({"mas__policies": {"a": {"adapter_of": "b"}, "b": {}}}, "weights that never change"),
        (
            {"mas__policies": TWO | {"a": {"adapter_of": "main", "overrides": {"actor": {"strategy": "fsdp"}}}}},
            "base main has",
        ),
    ],
)
def test_what_adapters_and_their_base_cannot_have_is_refused(found, settings, says):
    assert says in found(**settings)


@pytest.mark.parametrize("weights", [True, "gaussian"])
def test_an_adapter_starts_from_plain_lora_of_its_rank_and_scale(found, tmp_path, weights):
    plain = {"bias": "none", "modules_to_save": None, "rank_pattern": {}, "init_lora_weights": weights}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 16} | plain))
    assert found(actor_rollout_ref__model__lora_adapter_path=str(tmp_path)) == ""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16, "use_dora": True}))
    said = found(actor_rollout_ref__model__lora_adapter_path=str(tmp_path))
    assert "use_dora=True" in said and "lora_rank=8" in said
