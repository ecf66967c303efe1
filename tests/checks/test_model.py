import json
import shutil

import pytest

from verl_mas.checks.model import check_model
from verl_mas.planning.model_folder import chat_of, model_number, modules


@pytest.fixture
def folder(letters, tmp_path):
    return shutil.copytree(letters / "model", tmp_path / "model")


def said(make, path, **settings):
    return "\n".join(map(str, check_model(make(actor_rollout_ref__model__path=str(path), **settings))))


def test_a_whole_folder_is_accepted_and_its_template_renders(make, folder):
    assert said(make, folder) == ""
    section = make(actor_rollout_ref__model__path=str(folder)).actor_rollout_ref.model
    chat = chat_of(section)
    text = chat.render([{"role": "user", "content": "hello"}], {})
    assert "hello" in text and chat.length(text) >= 5
    assert model_number(section, "num_attention_heads") and "model.layers.0.mlp.up_proj" in modules(section)
    with pytest.raises(ValueError, match=r"\w"):
        chat.render([{"content": 5}], {})


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "no config.json that can be read"),
        ("model.safetensors", None, "has no model.safetensors"),
        ("model.safetensors", "cut", "is not whole"),
        ("tokenizer.json", "{", "no tokenizer that transformers loads"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(make, folder, name, content, says):
    (folder / name).unlink()
    if content:
        (folder / name).write_text(content)
    assert says in said(make, folder)


def test_a_tokenizer_without_a_template_needs_one_in_the_settings(make, folder):
    for file in folder.glob("chat_template*"):
        file.unlink()
    file = folder / "tokenizer_config.json"
    file.write_text(
        json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "chat_template"})
    )
    assert "has no chat template" in said(make, folder)
    assert said(make, folder, actor_rollout_ref__model__custom_chat_template="{{ messages }}") == ""


@pytest.mark.parametrize(
    ("path", "says"),
    [("/nowhere", "/nowhere"), ("", "path=''"), ("owner/name", "not checked"), ("s3://x/y", "not checked")],
)
def test_a_path_without_a_model_is_said(make, path, says):
    assert says in said(make, path)
