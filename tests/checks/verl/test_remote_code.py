from __future__ import annotations

import json

import pytest

from verl_mas.checks.verl.remote_code import check_remote_code, named_code


def test_the_code_that_a_model_names_is_found(tmp_path):
    for name, classes in {
        "config": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.X"},
        "tokenizer_config": {"AutoTokenizer": ["tokenization_x.Slow", None]},
        "processor_config": {"AutoProcessor": "owner/name--processing_x.P"},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"auto_map": classes}))
    found = ["configuration_x.py", "modeling_x.py", "owner/name--processing_x.py", "tokenization_x.py"]
    assert named_code(str(tmp_path)) == found


@pytest.mark.parametrize("text", ["{", "[]", '{"auto_map": 5}', '{"auto_map": {"AutoModel": 5}}', "{}"])
def test_a_file_that_names_no_code_has_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert named_code(str(tmp_path)) == []


def test_a_model_without_code_is_not_warned_of(make, letters):
    assert list(check_remote_code(make(actor_rollout_ref__model__path=f"{letters}/model"))) == []
