"""Whether a model folder is whole: its JSON files, its chat template, its weights. No tensor is read whole."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.model_folder import (
    WEIGHTS,
    ChatTemplate,
    is_hub_name,
    local_folder,
    read_json,
    readable_json,
    shapes_in,
    weight_files,
)
from verl_mas.checks.verl.place import is_remote, made_by, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, raised_by
from verl_mas.checks.verl.remembered import once
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.util import installed_version
from verl_mas.verl_.types import Fields

MARK = r"<\|\w+\|>"  # Of a turn
JSON_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json", "tokenization_*.py")
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
        if folder := local_folder(path):
            yield from check_weights(config, folder)
        else:
            offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
            why = ", and HF_HUB_OFFLINE forbids to download it" if offline else ""
            yield _not_checked(path, f"it is not in the Hugging Face cache of this machine{why}")
    elif path.endswith("/"):
        rule, own = "verl takes no path that ends in a slash", path.rstrip("/")
        yield ConfigError(f"actor_rollout_ref.model.path={path}", rule=rule, fix=f"set the model path to {own}")
    elif not (folder := Path(path).expanduser()).is_dir():
        command = made_by().get(str(Path(path).parent))
        fix = f"create it with: {command}" if command else FIX
        yield unless_elsewhere(config, ConfigError(f"actor_rollout_ref.model.path={path}", rule=RULE, fix=fix))
    else:
        broken = list(check_folder(folder, model.get("custom_chat_template")))
        if (own := model.get("tokenizer_path")) and (of_tokenizer := Path(own).expanduser()).is_dir():
            broken += _has_any(of_tokenizer, TOKENIZERS, "a tokenizer", "save it there with tokenizer.save_pretrained")
            broken += _tokenizer(of_tokenizer / "tokenizer.json", folder)
            both = [readable_json(one / "tokenizer.json").get("model") for one in (of_tokenizer, folder)]
            if all(both) and both[0] != both[1]:
                value = f"actor_rollout_ref.model.tokenizer_path={own} has other tokens than the tokenizer in {folder}"
                yield ConfigWarning(value, "the model has learnt those beside it", "remove it")
        yield from broken or check_weights(config, folder)
    if adapter := model.get("lora_adapter_path"):
        yield from _adapter(config, str(adapter))


def _adapter(config: DictConfig, path: str) -> Iterator[Problem]:
    if is_remote(path) or is_hub_name(path):
        value, fix = f"actor_rollout_ref.model.lora_adapter_path={path}", "download it and give its folder"
        yield ConfigWarning(value, reason="not checked: it is no folder on this machine", fix=fix)
        return
    folder = Path(path).expanduser()
    if lacking := [name for name in ("adapter_config.json", "adapter_model.*") if not any(folder.glob(name))]:
        value = f"actor_rollout_ref.model.lora_adapter_path={path} has no {' and no '.join(lacking)}"
        rule = "it is the folder of an adapter that PEFT saved, or its name on the hub"
        fix = "set it to the folder that holds adapter_config.json, or to null to start with a new adapter"
        yield unless_elsewhere(config, ConfigError(value, rule=rule, fix=fix))
    if endless := list(_endless(folder)):
        yield from endless
        return
    yield from raised_by(read_json, folder / "adapter_config.json")
    yield from _weights(folder)


def _not_checked(path: str, why: str) -> ConfigWarning:
    fix = "download it and give its folder" if is_remote(path) else f"run hf download {path}, and check again"
    return ConfigWarning(f"actor_rollout_ref.model.path={path}", reason=f"not checked: {why}", fix=fix)


def check_folder(folder: Path, custom_chat_template: str | None = None) -> Iterator[Problem]:
    if endless := list(_endless(folder)):
        yield from endless
        return
    files = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
    question = [str(folder), custom_chat_template, _changed(files), installed_version("transformers")]
    yield from once(json.dumps(question), _in_files)


def _changed(files: Iterable[str]) -> list[tuple[str, int, int]]:
    return [(file, stat.st_size, stat.st_mtime_ns) for file in files for stat in [os.stat(file)]]


@lru_cache(maxsize=64)
def _in_files(question: str) -> Sequence[Problem]:
    path, custom_chat_template, *_ = json.loads(question)
    return list(_look_into(Path(path), custom_chat_template))


def _look_into(folder: Path, custom_chat_template: str | None) -> Iterator[Problem]:
    for any_of, noun, fix in (
        (("config.json",), "a model's config.json", "save the model with save_pretrained"),
        (TOKENIZERS, "a tokenizer", "save the tokenizer beside the model with tokenizer.save_pretrained"),
        (WEIGHTS, "weights", "save the model with save_pretrained, or download it again"),
    ):
        yield from _has_any(folder, any_of, noun, fix)
    unreadable = [error for name in JSON_FILES for error in raised_by(read_json, folder / name)]
    yield from unreadable
    yield from _tokenizer(folder / "tokenizer.json", folder)
    yield from _ends(folder)
    named = readable_json(folder / "tokenizer_config.json")
    if "eos_token" in named and named["eos_token"] is None:
        rule = "replies end with it, and verl fills rows with it"
        yield ConfigError(f"{folder} has eos_token=null", rule=rule, fix="save the tokenizer with an eos_token")
    chat = None if unreadable else ChatTemplate.of(folder, custom_chat_template)
    if not unreadable and (chat is None or "messages" not in chat.template):
        yield ConfigError(
            f"{folder} has {'no chat template' if chat is None else 'a chat template without messages'}",
            rule="prompts are lists of messages, which a chat template renders as text",
            fix="set tokenizer.chat_template and save the tokenizer again, or use an instruct model",
        )
    elif chat and (opens := chat.unasked()):
        reason = f"a template writes {opens!r} before a reply, and this one not where add_generation_prompt is true"
        fix = "add it to the end of the template"
        yield ConfigWarning(f"{folder}: prompts do not ask for a reply", reason, fix)
    marks, own = set(re.findall(MARK, chat.template if chat else "")), set(re.findall(MARK, " ".join(_added(folder))))
    if marks and own and not marks & own:
        value = f"{folder}: the chat template marks turns with {min(marks)}, and the tokenizer has {min(own)}"
        yield ConfigWarning(value, "the template is of another model", "take both of one model")
    yield from _weights(folder)


def _has_any(folder: Path, any_of: Sequence[str], noun: str, fix: str) -> Iterator[ConfigError]:
    if not any(any(folder.glob(name)) for name in any_of):
        yield ConfigError(f"{folder} has no {any_of[0]}", rule=f"a model folder holds {noun}", fix=fix)


def check_weights(config: DictConfig, folder: Path) -> Iterator[Problem]:
    """Whether the weights are those of the model that verl builds from config.json. A model that takes Python code of
    its own, or has quantised weights, is left out: this needs its code, or a GPU."""
    model = config.actor_rollout_ref.model
    described = local_folder(str(model.get("hf_config_path") or folder)) or folder
    fields = readable_json(described / "config.json")
    if "quantization_config" in fields or ("auto_map" in fields and model.trust_remote_code):
        return
    own = OmegaConf.to_container(model.get("override_config") or OmegaConf.create(), resolve=True)
    files = [str(file) for file in weight_files(folder)]
    stats = _changed([str(described / "config.json"), *files])
    yield from once(json.dumps([str(described), files, own, stats, installed_version("transformers")]), _compared)


@lru_cache(maxsize=64)
def _compared(question: str) -> Sequence[Problem]:
    described, files, own, *_ = json.loads(question)
    value, fix = f"{described}/config.json", "save or download the model again, with the config.json of its weights"
    try:
        with silent_transformers():
            kind, lacking, other, unread = _loaded(described, files, own.get("model_config", own))
    except Exception as error:  # noqa: BLE001  models raise any in their constructors
        rule = "it describes a model that transformers can build and that generates text"
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return [ConfigError(f"{value}: {why}", rule=rule, fix=fix)]
    parts = {"lack": lacking, "have": other, "have, unread,": unread}
    found = "; ".join(f"{verb} {_first(names)}" for verb, names in parts.items() if names)
    value = f"{value} describes {kind}, and the weights {found}"
    if lacking or other:
        rule = "it describes the weights beside it: what does not fit would be random numbers"
        return [ConfigError(value, rule=rule, fix=fix)]
    return [ConfigWarning(value, reason="the model has no place for them", fix=fix)] if unread else []


def _loaded(described: str, files: list[str], own: Fields) -> tuple[str, list[str], list[str], list[str]]:
    """The class that verl loads; which of its tensors the files lack, have in another shape, and have beside them. This
    is what transformers finds when it loads tensors without numbers."""
    import torch
    from torch.overrides import TorchFunctionMode
    from transformers import AutoConfig
    from verl.utils.model import get_hf_auto_model_class, update_model_config

    class WithoutNumbers(TorchFunctionMode):
        """Tied weights that the files have twice are compared."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return True if function is torch.equal else function(*args, **(kwargs or {}))

    config = AutoConfig.from_pretrained(described)
    update_model_config(config, own)
    if len(config.architectures or ()) != 1:
        raise ValueError(f"architectures={config.architectures}, and verl loads the one that it names")
    with torch.device("meta"), WithoutNumbers():
        kind = type(get_hf_auto_model_class(config).from_config(config))
        if not kind.can_generate():
            raise ValueError(f"verl loads {config.architectures[0]} as {kind.__name__}, which has no head for text")
        tensors = {name: torch.empty(shape) for file in files for name, shape in shapes_in(Path(file)).items()}
        options = {"device_map": "meta", "ignore_mismatched_sizes": True, "output_loading_info": True}
        _, found = kind.from_pretrained(None, config=config, state_dict=tensors, **options)
    other = [f"{name} {list(here)} in place of {list(needed)}" for name, here, needed in found["mismatched_keys"]]
    return kind.__name__, list(found["missing_keys"]), other, list(found["unexpected_keys"])


def _first(names: Sequence[str]) -> str:
    others = len(names) - 1
    return min(names) + (f" and {others} more" if others else "")


@contextmanager
def silent_transformers() -> Iterator[None]:
    """Without its report of loading and its bars, which are for a terminal."""
    from logging import CRITICAL

    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


def _tokenizer(file: Path, model: Path) -> Iterator[ConfigError]:
    """A tokenizer of 150,000 tokens takes long to parse; if it is cut, its last brace is missing."""
    if not file.is_file():
        return
    if file.stat().st_size <= PARSED_BYTES:
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        try:
            known = Tokenizer.from_file(str(file)).get_vocab()
            with suppress(Exception):  # Those of more than one kind, in many places
                # Also what tokenizer_config.json and other files add.
                known = PreTrainedTokenizerFast.from_pretrained(str(file.parent)).get_vocab()
            tokens = 1 + max(known.values(), default=0)
        except Exception as error:  # noqa: BLE001  it raises no other
            yield _broken(file, f"is no tokenizer: {error}")
            return
        rows = readable_json(model / "config.json").get("vocab_size")
        if isinstance(rows, int) and tokens > rows:
            rule = "each token has a row of the model's embedding"
            fix = "take the tokenizer that was saved with this model"
            value = f"{file} has tokens up to {tokens - 1}, and config.json vocab_size={rows}"
            yield ConfigError(value, rule=rule, fix=fix)
        return
    with file.open("rb") as opened:
        start = opened.read(64).lstrip()
        opened.seek(-64, os.SEEK_END)
        if not (start.startswith(b"{") and opened.read().rstrip().endswith(b"}")):
            yield _broken(file, "is cut")


def _added(folder: Path) -> dict[str, int]:
    tokens = readable_json(folder / "tokenizer.json").get("added_tokens")
    return {token["content"]: token["id"] for token in tokens} if isinstance(tokens, list) else {}


def _ends(folder: Path) -> Iterator[Problem]:
    rows, ends = readable_json(folder / "config.json").get("vocab_size"), list[int]()
    for name in ("config.json", "generation_config.json"):
        given = readable_json(folder / name).get("eos_token_id")
        own = [end for end in (given if isinstance(given, list) else [given]) if isinstance(end, int)]
        if isinstance(rows, int) and own and min(own) >= rows:
            value, rule = f"{folder / name}: eos_token_id={own}, of {rows} tokens", "a reply can end with one of them"
            yield ConfigError(value, rule=rule, fix="set it to the eos_token of the tokenizer")
        ends = own or ends
    end = readable_json(folder / "tokenizer_config.json").get("eos_token")
    of_end = _added(folder).get(str(end))
    if ends and of_end is not None and of_end not in ends:
        value = f"{folder}: replies end with eos_token_id={ends}, and the tokenizer's eos_token {end!r} is {of_end}"
        yield ConfigWarning(value, "a template that ends turns with it is not followed", "write both alike")


def _weights(folder: Path) -> Iterator[ConfigError]:
    for index in (name for name in WEIGHTS if name.endswith(".json")):
        unreadable = list(raised_by(read_json, folder / index))
        yield from unreadable
        named = {} if unreadable else read_json(folder / index).get("weight_map")
        for name in sorted(set(map(str, named.values()))) if isinstance(named, dict) else ():
            if not (folder / name).exists():
                yield _broken(folder / name, f"is missing; {index} names it")
    pickled = [file for file in (*weight_files(folder), *folder.glob("adapter_model.bin")) if file.suffix == ".bin"]
    for file in (*sorted(folder.glob("*.safetensors")), *filter(Path.is_file, pickled)):
        try:
            shapes_in(file)
        except ValueError as error:
            yield _broken(file, f"is not whole: {error}")
            continue
        if why := _no_weights(file):
            yield _broken(file, f"has {why}")


def _no_weights(file: Path) -> str:
    """A tensor that begins with NaN or an infinity, as all do of a run that diverged; or zeros, as in a file that was
    made and not filled."""
    from safetensors import SafetensorError, safe_open

    # Of a file of torch; and some kinds of numbers have no such value, or torch does not know them.
    with suppress(SafetensorError, RuntimeError, TypeError), safe_open(file, framework="pt") as opened:
        begins = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
        first = {name: part[:1].float() for name, part in begins.items() if part.get_shape()}
        if name := next((name for name, part in first.items() if not part.isfinite().all()), None):
            return f"no numbers in {name}"
        if first and not any(part.any() for part in first.values()):
            return "nothing but zeros"
    return ""


def _endless(folder: Path) -> Iterator[ConfigError]:
    """Files that cannot be read to an end."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and path.suffix in (".json", ".safetensors", ".bin"):
            yield _broken(path, "is a folder")
        elif not (path.is_file() or path.is_dir()):
            yield _broken(path, "is a pipe, a device or a link to nothing")


def _broken(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} {why}", rule="every file of the weights is whole", fix="save or download the model again"
    )
