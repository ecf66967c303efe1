"""Whether a model folder is whole: its JSON files, its chat template, its weights. No tensor is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.verl.chat_template import ChatTemplate
from verl_mas.checks.verl.model_folder import is_hub_name, local_folder, not_json, read_header, read_json
from verl_mas.checks.verl.place import MADE_BY, is_remote, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, raised_by
from verl_mas.errors import ConfigError, ConfigWarning

JSON_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
WEIGHTS = ("*.safetensors", "*.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Larger JSON files are looked at from both ends only.
PARSED_BYTES = 2 << 20
RULE = "it is a folder in Hugging Face format, or the name of a model on the hub (owner/name)"
FIX = "set the model path to an existing folder or to owner/name"


def check_model(config: DictConfig) -> Iterator[Problem]:
    """A local folder must hold a model, its tokenizer and a chat template; a name on the hub is looked up in the cache
    of this machine."""
    model = config.actor_rollout_ref.model
    path = model.path
    if not isinstance(path, str) or not path.strip():
        yield ConfigError(f"actor_rollout_ref.model.path={path!r}", rule=RULE, fix=FIX)
    elif is_remote(path):
        yield _not_checked(path, "it is copied when the run starts")
    elif is_hub_name(path):
        if local_folder(path) is None:
            offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
            why = ", and HF_HUB_OFFLINE forbids to download it" if offline else ""
            yield _not_checked(path, f"it is not in the Hugging Face cache of this machine{why}")
    elif not (folder := Path(path).expanduser()).is_dir():
        command = MADE_BY.get(str(Path(path).parent))
        fix = f"create it with: {command}" if command else FIX
        yield unless_elsewhere(config, ConfigError(f"actor_rollout_ref.model.path={path}", rule=RULE, fix=fix))
    else:
        yield from check_folder(folder, model.get("custom_chat_template"))
    if adapter := model.get("lora_adapter_path"):
        yield from _adapter(config, str(adapter))


def _adapter(config: DictConfig, path: str) -> Iterator[Problem]:
    # One on the hub is not looked at.
    if not is_remote(path) and not is_hub_name(path) and not Path(path, "adapter_config.json").expanduser().is_file():
        value = f"actor_rollout_ref.model.lora_adapter_path={path} has no adapter_config.json"
        rule = "it is the folder of an adapter that PEFT saved, or its name on the hub"
        fix = "set it to the folder that holds adapter_config.json, or to null to start with a new adapter"
        error = ConfigError(value, rule=rule, fix=fix)
        yield unless_elsewhere(config, error)


def _not_checked(path: str, why: str) -> ConfigWarning:
    fix = "download it and give its folder" if is_remote(path) else f"run hf download {path}, and check again"
    return ConfigWarning(f"actor_rollout_ref.model.path={path}", reason=f"not checked: {why}", fix=fix)


def check_folder(folder: Path, custom_chat_template: str | None = None) -> Iterator[ConfigError]:
    for any_of, noun, fix in (
        (["config.json"], "a model's config.json", "save the model with save_pretrained"),
        (list(TOKENIZERS), "a tokenizer", "save the tokenizer beside the model with tokenizer.save_pretrained"),
        (list(WEIGHTS), "weights", "save the model with save_pretrained, or download it again"),
    ):
        if not any(any(folder.glob(name)) for name in any_of):
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
    try:
        _, whole = read_header(file)
    except ValueError as error:
        return str(error)
    return "" if size == whole else f"has {size} bytes, and its header says {whole}"


def _broken(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} {why}", rule="every file of the weights is whole", fix="save or download the model again"
    )
