from __future__ import annotations

import json

import pytest

from verl_mas.checks.verl.served import check_remote_code, named_code


@pytest.fixture
def model(tmp_path):
    def write(**auto_map):
        for name, classes in auto_map.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"auto_map": classes}))
        return str(tmp_path)

    return write


def test_the_code_that_a_model_names_is_found(model):
    path = model(
        config={"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.X"},
        tokenizer_config={"AutoTokenizer": ["tokenization_x.Slow", None]},
        processor_config={"AutoProcessor": "owner/name--processing_x.P"},
    )
    assert named_code(path) == [
        "configuration_x.py",
        "modeling_x.py",
        "owner/name--processing_x.py",
        "tokenization_x.py",
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"auto_map": 5}', '{"auto_map": {"AutoModel": 5}}', "{}"])
def test_a_file_that_names_no_code_has_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert named_code(str(tmp_path)) == []


def test_a_run_that_trusts_remote_code_is_warned_with_the_files(make, model):
    path = model(config={"AutoModel": "modeling_x.X"})
    settings = {"actor_rollout_ref__model__path": path, "actor_rollout_ref__model__trust_remote_code": True}
    (warning,) = check_remote_code(make(**settings))
    assert "trust_remote_code=True" in warning.value and f"modeling_x.py of {path}" in warning.reason


def test_a_model_on_the_hub_that_is_trusted_is_warned_of(make):
    (warning,) = check_remote_code(make(actor_rollout_ref__model__trust_remote_code=True))
    assert "hub/tiny has on the hub" in warning.reason


def test_a_tokenizer_with_code_is_warned_of_although_no_code_is_trusted(make, model):
    path = model(tokenizer_config={"AutoTokenizer": ["tokenization_x.Slow", None]})
    (warning,) = check_remote_code(make(actor_rollout_ref__model__path=path))
    assert "tokenization_x.py" in warning.value and "reward workers" in warning.reason
    config = make(actor_rollout_ref__model__tokenizer_path=path)
    assert [warning.value for warning in check_remote_code(config)] == [f"{path} names Python code: tokenization_x.py"]


def test_a_model_without_code_is_not_warned_of(make, letters):
    assert list(check_remote_code(make(actor_rollout_ref__model__path=f"{letters}/model"))) == []
