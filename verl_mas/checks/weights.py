"""Whether a model folder is whole: its JSON files, its chat template, its weights. No tensor is read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.chat_template import ChatTemplate, not_json, read_json
from verl_mas.checks.place import MADE_BY, is_remote, unless_elsewhere
from verl_mas.checks.refusals import Problem, raised_by
from verl_mas.errors import ConfigError, ConfigWarning

JSON_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
WEIGHTS = ("*.safetensors", "*.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Larger JSON files are looked at from both ends only.
PARSED_BYTES = 2 << 20
# The header of a safetensors file starts with its own length.
LENGTH_BYTES = 8


def check_model(config: DictConfig) -> Iterator[Problem]:
    """A local folder must hold a model, its tokenizer and a chat template; a name on the hub is looked up in the cache
    of this machine."""
    model = config.actor_rollout_ref.model
    path = model.path
    if not isinstance(path, str) or not path.strip():
        yield ConfigError(f"actor_rollout_ref.model.path={path!r}", rule=RULE, fix=FIX)
    elif is_remote(path):
        yield _not_checked(path, "it is copied when the run starts")
    elif _is_hub_name(path):
        if local_folder(path) is None:
            yield _not_checked(path, "it is not in the Hugging Face cache of this machine" + _offline())
    elif not (folder := Path(path).expanduser()).is_dir():
        command = MADE_BY.get(str(Path(path).parent))
        fix = f"create it with: {command}" if command else FIX
        yield unless_elsewhere(config, ConfigError(f"actor_rollout_ref.model.path={path}", rule=RULE, fix=fix))
    else:
        yield from check_folder(folder, model.get("custom_chat_template"))
    adapter = model.get("lora_adapter_path")
    if adapter and not is_remote(str(adapter)) and not Path(str(adapter), "adapter_config.json").is_file():
        error = ConfigError(
            f"actor_rollout_ref.model.lora_adapter_path={adapter} has no adapter_config.json",
            rule="it is the folder of a LoRA adapter that PEFT saved",
            fix="set it to such a folder, or to null",
        )
        yield unless_elsewhere(config, error)


RULE = "it is a folder in Hugging Face format, or the name of a model on the hub (owner/name)"
FIX = "set the model path to an existing folder or to owner/name"


def local_folder(path: str) -> Path | None:
    """The folder of a model on this machine; of a name on the hub, its latest snapshot in the cache."""
    if is_remote(path):
        return None
    folder = Path(path).expanduser()
    if folder.is_dir() or not _is_hub_name(path):
        return folder if folder.is_dir() else None
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser() / f"models--{path.replace('/', '--')}"
    revision = cache / "refs" / "main"
    snapshot = cache / "snapshots" / (revision.read_text().strip() if revision.is_file() else "none")
    return snapshot if (snapshot / "config.json").exists() else None


def _is_hub_name(path: str) -> bool:
    folder = Path(path).expanduser()
    return not (folder.is_dir() or folder.is_absolute() or path.count("/") != 1 or path.startswith((".", "~")))


def _not_checked(path: str, why: str) -> ConfigWarning:
    return ConfigWarning(
        f"actor_rollout_ref.model.path={path}",
        reason=f"not checked: {why}",
        fix="download it and give its folder" if is_remote(path) else f"run hf download {path}, and check again",
    )


def _offline() -> str:
    on = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return ", and HF_HUB_OFFLINE forbids to download it" if on else ""


def check_folder(folder: Path, custom_chat_template: str | None = None) -> Iterator[ConfigError]:
    for any_of, noun, fix in (
        (["config.json"], "a model's config.json", "save the model with save_pretrained"),
        (list(TOKENIZERS), "a tokenizer", "save the tokenizer beside the model with tokenizer.save_pretrained"),
        (list(WEIGHTS), "weights", "save the model with save_pretrained, or download it again"),
    ):
        if not any(_has(folder, name) for name in any_of):
            yield ConfigError(f"{folder} has no {any_of[0]}", rule=f"a model folder holds {noun}", fix=fix)
    unreadable = [error for name in JSON_FILES for error in raised_by(read_json, folder / name)]
    yield from unreadable
    yield from _tokenizer(folder / "tokenizer.json")
    if not unreadable and ChatTemplate.of(folder, custom_chat_template) is None:
        yield ConfigError(
            f"{folder} has no chat template",
            rule="prompts are lists of messages, which a chat template renders as text",
            fix="set tokenizer.chat_template and save the tokenizer again, or use an instruct model",
        )
    yield from _weights(folder)


def _has(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def _tokenizer(file: Path) -> Iterator[ConfigError]:
    """A tokenizer of 150,000 tokens takes long to parse; if it is cut, its last brace is missing."""
    if not file.exists() or file.stat().st_size <= PARSED_BYTES:
        yield from raised_by(read_json, file)
        return
    with file.open("rb") as opened:
        start = opened.read(64).lstrip()
        opened.seek(-64, os.SEEK_END)
        if not (start.startswith(b"{") and opened.read().rstrip().endswith(b"}")):
            error = not_json(file, "it is cut")
            yield ConfigError(error.value, rule=error.rule, fix=error.fix)


def _weights(folder: Path) -> Iterator[ConfigError]:
    for index in INDEXES:
        unreadable = list(raised_by(read_json, folder / index))
        yield from unreadable
        for name in () if unreadable else _shards(folder / index):
            if not (folder / name).exists():
                yield _broken(folder / name, f"is missing; {index} names it")
    for file in sorted(folder.glob("*.safetensors")):
        if why := _cut(file):
            yield _broken(file, why)
    for file in sorted(folder.glob("*.bin")):
        if not file.stat().st_size:
            yield _broken(file, "is empty")


def _shards(index: Path) -> list[str]:
    named = read_json(index).get("weight_map", {})
    return sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []


def _cut(file: Path) -> str:
    """How a safetensors file differs from what its header says; empty if it does not."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(LENGTH_BYTES)
        length = struct.unpack("<Q", start)[0] if len(start) == LENGTH_BYTES else size
        if length > size - LENGTH_BYTES:
            return f"is cut or is not in safetensors format: {size} bytes"
        try:
            header = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, LookupError, AttributeError):
            return "has no header in safetensors format"
    whole = LENGTH_BYTES + length + max(ends, default=0)
    return "" if size == whole else f"has {size} bytes, and its header says {whole}"


def _broken(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} {why}", rule="every file of the weights is whole", fix="save or download the model again"
    )
