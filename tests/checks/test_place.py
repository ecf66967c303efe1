import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from verl_mas.checks import place
from verl_mas.checks.place import run_on
from verl_mas.config.compose import compose
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.hardware import parse_gpus
from verl_mas.planning.model_folder import chat_of, model_number, modules

RECIPES = Path(__file__).parents[2] / "recipes"
TEXT = " ".join(page.read_text() for page in [*RECIPES.glob("*/README.md"), *RECIPES.parent.glob("docs/**/*.md")])


@pytest.mark.parametrize("command", place.made_by().values())
def test_the_command_that_creates_a_recipes_data_is_on_a_page(command):
    assert command in re.sub(r"\s*\\?\n\s*", " ", TEXT)


def test_the_data_and_models_of_every_recipe_have_their_command():
    for file in RECIPES.glob("*/*.yaml"):
        recipe = yaml.safe_load(file.read_text())
        named = [recipe.get("data", {}).get("train_files"), recipe.get("data", {}).get("val_files")]
        named.append(recipe.get("actor_rollout_ref", {}).get("model", {}).get("path"))
        for path in named:
            sound = path is None or not path.startswith("runs/") or str(Path(path).parent) in place.made_by()
            assert sound, (file, path)


def test_a_missing_file_is_an_error_with_the_command_that_creates_it_unless_the_run_is_elsewhere(make, monkeypatch):
    problem = place.missing(make(), "data.train_files", "runs/math/train.parquet", "a file")
    assert isinstance(problem, ConfigError) and problem.fix == "create it with: verl-mas data math --out runs/math"
    with run_on(parse_gpus("8x80")):
        problem = place.missing(make(), "data.train_files", "runs/math/train.parquet", "a file")
        assert isinstance(problem, ConfigWarning) and "the run is on 8 GPUs of 80 GB" in problem.reason
    assert not place.elsewhere(make(trainer__device="cuda", ray_kwargs__ray_init__num_gpus=8))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert place.elsewhere(make()) == "the run joins the Ray cluster at 10.0.0.1:6379"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("+recipe=plan_path/qwen3 +mas=planner_executor", "write +mas=planner_executor +recipe=plan_path/qwen3"),
        ("+mas=planner_executor +recipe=plan_path/qwen3", None),
        ("+recipe=first_run/laptop +mas=team", None),
        ("+mas/mode=colocate_async +mas=team", "write +mas=team +mas/mode=colocate_async"),
        ("+mas/mode=colocate_async +recipe=math/shared", "write +recipe=math/shared +mas/mode=colocate_async"),
        ("+mas=team +mas/mode=colocate_async +recipe=first_run/laptop", None),
        ("+mas/mode=colocate_async +mas=team trainer.v1.trainer_mode=mas", None),
    ],
)
def test_a_team_after_what_it_would_replace_is_refused_with_the_other_order(words, refused):
    with run_on(None, words.split()):
        assert next((error.fix for error in place.check_order(compose(words.split()))), None) == refused


def test_an_address_is_tried_once_unless_a_proxy_is_between(monkeypatch):
    monkeypatch.setattr(place, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        assert place.no_connection(f"http://{at}/v1") == place.no_connection(at) == ""
    assert place.no_connection(at).startswith(f"a connection to {at}, tried once for 3 s: ")
    monkeypatch.setattr(place, "getproxies", lambda: {"http": "http://proxy"})
    assert place.no_connection(f"http://{at}") == place.no_connection("http://h:99999") == ""


def test_a_folder_can_be_written_where_its_nearest_parent_can(tmp_path):
    assert place.not_writable(tmp_path / "a/b/c") == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert place.not_writable(tmp_path / "file/b") == f"{tmp_path}/file is a file"
    (tmp_path / "link").symlink_to("link")
    assert place.not_writable(tmp_path / "link/b") == f"{tmp_path}/link is a link to nowhere"
    assert "File name too long" in place.not_writable(tmp_path / ("x" * 300))
    assert place.not_writable(Path("/proc/nowhere")).startswith("/proc")


@pytest.fixture
def folder(letters, tmp_path):
    return shutil.copytree(letters / "model", tmp_path / "model")


def said(make, path, **settings):
    return "\n".join(map(str, place.check_model(make(actor_rollout_ref__model__path=str(path), **settings))))


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
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "chat_template": None}))
    assert "has no chat template" in said(make, folder)
    assert said(make, folder, actor_rollout_ref__model__custom_chat_template="{{ messages }}") == ""


@pytest.mark.parametrize(
    ("path", "says"),
    [("/nowhere", "/nowhere"), ("", "path=''"), ("owner/name", "not checked"), ("s3://x/y", "not checked")],
)
def test_a_path_without_a_model_is_said(make, path, says):
    assert says in said(make, path)
