from __future__ import annotations

import json

import pytest

from verl_mas.checks import served


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def test_a_complete_model_folder_and_a_name_on_the_hub_pass(model):
    for path in (str(model), "Qwen/Qwen3-4B", "hdfs://cluster/model"):
        assert list(served.check_model(path)) == []


@pytest.mark.parametrize("path", ["/nowhere/model", "./nowhere", "nowhere", "a/b/c"])
def test_a_model_that_is_not_there_is_refused(path):
    (error,) = served.check_model(path)
    assert error.fix == "set the model path to an existing folder or to owner/name"


def test_everything_that_a_model_folder_lacks_is_named(model):
    for file in model.iterdir():
        file.unlink()
    missing = [error.value.removeprefix(f"{model} has no ") for error in served.check_model(str(model))]
    assert missing == ["config.json", "tokenizer.json", "chat template"]


def test_a_tokenizer_of_another_kind_is_a_tokenizer(model):
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer.model").touch()
    (error,) = served.check_model(str(model))
    assert "no chat template" in error.value


def test_options_that_the_embedded_engine_does_not_take_are_refused(make):
    path = "actor_rollout_ref.rollout.engine_kwargs.transformers"

    def refused(**options) -> str:
        errors = served.check_served(make(actor_rollout_ref__rollout__engine_kwargs={"transformers": options}))
        return " ".join(error.value for error in errors)

    assert refused(threads=2, cache_gib=1) == ""
    assert f"{path}.threads=0" in refused(threads=0)
    assert f"{path}.thread" in refused(thread=2)


def test_an_unknown_engine_is_refused_with_the_nearest_name():
    assert list(served.check_engine("transformers")) == []
    (error,) = served.check_engine("sglangg")
    assert "did you mean 'sglang'" in error.fix
