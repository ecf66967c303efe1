from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from wrong_configs.prepare import model

from verl_mas.checks.verl.model_files import check_model
from verl_mas.checks.verl.model_folder import local_folder
from verl_mas.errors import ConfigWarning


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model(tmp_path / "model", {})
    return tmp_path / "model"


@pytest.fixture
def problems(make: Callable[..., DictConfig]) -> Callable[[object], list[object]]:
    return lambda path: list(check_model(make(actor_rollout_ref__model__path=str(path))))


def test_a_whole_model_folder_passes(folder, problems):
    assert problems(folder) == []


def test_a_name_on_the_hub_is_looked_up_in_the_cache(problems, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (warning,) = problems("owner/tiny")
    assert isinstance(warning, ConfigWarning) and "not in the Hugging Face cache" in warning.reason
    cached = tmp_path / "hub/models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("abc")
    model(cached / "snapshots/abc", {})
    assert problems("owner/tiny") == []
    assert local_folder("owner/tiny") == cached / "snapshots/abc"


def test_everything_that_a_model_folder_lacks_is_named(folder, problems):
    for file in folder.iterdir():
        file.unlink()
    missing = [error.value.removeprefix(f"{folder} has no ") for error in problems(folder)]
    assert missing == ["config.json", "tokenizer.json", "model.safetensors", "chat template"]


def test_a_tokenizer_of_another_kind_is_a_tokenizer(folder, problems):
    (folder / "tokenizer.json").unlink()
    assert [error.value for error in problems(folder)] == [f"{folder} has no tokenizer.json"]
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.model").touch()
    (error,) = problems(folder)
    assert "no chat template" in error.value


@pytest.mark.parametrize("cut", [None, 0, 900])
def test_weights_of_torch_are_compared_without_being_read(folder, problems, cut):
    file = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), file)
    (folder / "model.safetensors").unlink()
    file.write_bytes(file.read_bytes()[:cut])
    found = [error.value.partition(": ")[0] for error in problems(folder)]
    assert found == ([] if cut is None else [f"{file} is not whole"])


def test_weights_of_a_run_that_diverged_are_refused(folder, problems):
    weights = load_file(folder / "model.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.ndim == 2)
    save_file({**weights, name: weights[name] * float("nan")}, folder / "model.safetensors")
    (error,) = problems(folder)
    assert f"has no numbers in {name}" in error.value


def test_tied_weights_may_be_there_twice(tmp_path, problems):
    model(tmp_path / "model", {"shapes": {"lm_head.weight": [1, 2]}})
    assert problems(tmp_path / "model") == []


def test_a_model_that_reads_images_is_loaded_with_the_class_of_verl(tmp_path, problems):
    both = {"hidden_size": 16, "intermediate_size": 16}
    text = dict.fromkeys(["num_hidden_layers", "num_key_value_heads"], 1) | {"num_attention_heads": 2, "vocab_size": 8}
    none = dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id"])
    rope = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    vision = {"depth": 1, "num_heads": 2, "out_hidden_size": 16}
    config = Qwen2_5_VLConfig(text_config={**both, **text, **none, **rope}, vision_config={**both, **vision})
    model(tmp_path / "model", {})
    (tmp_path / "model/model.safetensors").unlink()
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    assert problems(tmp_path / "model") == []


def test_the_code_of_a_model_is_not_run_and_quantised_weights_are_left_out(tmp_path, make):
    path = {"actor_rollout_ref__model__path": str(tmp_path)}
    for config in ({"quantization_config": {}}, {"auto_map": {"AutoConfig": "mine.Config"}}):
        model(tmp_path, {"config": {"model_type": "unknown", **config}})
        assert list(check_model(make(**path, actor_rollout_ref__model__trust_remote_code=True))) == []
    assert len(list(check_model(make(**path)))) == 1
