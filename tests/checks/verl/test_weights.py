from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig
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
    assert missing == ["config.json", "tokenizer.json", "*.safetensors", "chat template"]


def test_a_tokenizer_of_another_kind_is_a_tokenizer(folder, problems):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.model").touch()
    (error,) = problems(folder)
    assert "no chat template" in error.value
