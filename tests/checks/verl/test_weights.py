from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl import Qwen2_5_VLTextConfig
from wrong_configs.prepare import model

from verl_mas.checks.verl.model_folder import local_folder
from verl_mas.checks.verl.served import check_model
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
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.model").touch()
    (error,) = problems(folder)
    assert "no chat template" in error.value


@pytest.mark.parametrize("cut", [None, 0, 900])
def test_weights_of_torch_are_compared_without_being_read(folder, problems, cut):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save(tensors, file)
    if cut is None:
        assert problems(folder) == []
        return
    file.write_bytes(file.read_bytes()[:cut])
    (error,) = problems(folder)
    assert error.value.startswith(f"{file} is not whole: ")


def test_tied_weights_may_be_there_twice(tmp_path, problems):
    model(tmp_path / "model", {"shapes": {"lm_head.weight": [1, 2]}})
    assert problems(tmp_path / "model") == []


def test_a_model_that_reads_images_is_loaded_with_the_class_of_verl(tmp_path, problems):
    own = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    text = Qwen2_5_VLTextConfig(
        **own, num_hidden_layers=1, num_key_value_heads=1, vocab_size=8, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]},
    )  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    model(tmp_path / "model", {})
    (tmp_path / "model/model.safetensors").unlink()
    config = Qwen2_5_VLConfig(text_config=text.to_dict(), vision_config=vision)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    assert problems(tmp_path / "model") == []


def test_the_code_of_a_model_is_not_run_and_quantised_weights_are_left_out(tmp_path, make):
    for name, config in (("code", {"auto_map": {"AutoConfig": "mine.Config"}}), ("small", {"quantization_config": {}})):
        model(tmp_path / name, {"config": {"model_type": "unknown", **config}})
        trusted = {"actor_rollout_ref__model__path": str(tmp_path / name)}
        assert list(check_model(make(**trusted, actor_rollout_ref__model__trust_remote_code=True))) == []
    (error,) = check_model(make(actor_rollout_ref__model__path=str(tmp_path / "code")))
    assert "mine" in error.value or "custom code" in error.value
