"""A model's folder: config.json, the headers of weights, and by transformers the tokenizer with its chat template. No
tensor is read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.place import is_remote, missing
from verl_mas.checks.refusals import Problem
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.known_models import known
from verl_mas.verl_.types import Fields

NOUN = "a folder in Hugging Face format, or the name of a model on the hub (owner/name)"
FIX = "set the model path to an existing folder or to owner/name"
# transformers reads the first of these, or the files that it lists.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# Keys, and kinds of layers, of models that carry a state from token to token: linear attention, Mamba, convolutions.
STATE = {"linear_conv_kernel_dim", "conv_L_cache", "mamba_d_conv", "mamba_d_state", "ssm_state_size", "state_size"}
STATEFUL = {"linear_attention", "mamba", "conv"}
# A model's config.json has one of these if it reads more than text.
READS_MEDIA = ("vision_config", "audio_config", "thinker_config")


def local_folder(path: str) -> Path | None:
    """The folder of a model on this machine; of a name on the hub, its latest snapshot in the cache."""
    folder = Path(path).expanduser()
    if folder.is_dir() or not is_hub_name(path):
        return folder if folder.is_dir() else None
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser() / f"models--{path.replace('/', '--')}"
    revision = cache / "refs" / "main"
    snapshot = cache / "snapshots" / (revision.read_text().strip() if revision.is_file() else "none")
    return snapshot if (snapshot / "config.json").exists() else None


def is_hub_name(path: str) -> bool:
    """Whether a path is owner/name, and no folder here."""
    folder = Path(path).expanduser()
    return not (folder.is_dir() or folder.is_absolute() or path.count("/") != 1 or path.startswith((".", "~")))


def readable_json(file: Path) -> Mapping[str, object]:
    """The object in a file; empty if there is none, or none that can be read, as `check_model` says."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shapes_in(file: Path) -> Mapping[str, Sequence[int]]:
    """The shapes of the tensors in a safetensors file, from its header. Raises ValueError for one that is cut."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  # no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def weight_files(folder: Path) -> list[Path]:
    for name in WEIGHTS:
        if (file := folder / name).is_file():
            named = readable_json(file).get("weight_map") if file.suffix == ".json" else {"": name}
            return sorted({folder / str(part) for part in named.values()}) if isinstance(named, dict) else []
    return []


def _folder(path: object) -> Path | None:
    return local_folder(path) if isinstance(path, str) and path else None


def settings(model: DictConfig) -> Mapping[str, object]:
    """The model's config.json; empty where it is not here."""
    folder = _folder(model.get("hf_config_path")) or _folder(model.get("path"))
    return readable_json(folder / "config.json") if folder else {}


def fields(model: DictConfig) -> Mapping[str, object]:
    """The model's config.json, with the numbers of its text model where it also reads images; those of a known model
    that is not here."""
    found = settings(model)
    if not found and not model.get("hf_config_path"):
        found = known(str(model.get("path"))) or {}
    text = found.get("text_config")
    return {**found, **(text if isinstance(text, Mapping) else {})}


def model_number(model: DictConfig, key: str) -> int | None:
    """A number of the model's config.json, as verl reads it; None for one that is neither here nor a known one."""
    found = OmegaConf.select(model, f"override_config.{key}") or fields(model).get(key)
    return found if type(found) is int else None


def is_stateful(model: DictConfig) -> bool:
    """Whether a token reads more of those before it than its attention lets it."""
    found = fields(model)
    kinds = found.get("layer_types")
    return bool(STATE & found.keys() or (isinstance(kinds, list) and STATEFUL & {*map(str, kinds)}))


def has_own_head(model: DictConfig) -> bool:
    """Whether the weights of the output layer are surely not those of the embedding."""
    tied = fields(model).get("tie_word_embeddings")
    return tied is False or (tied is None and "lm_head" in (modules(model) or ()))


def vision_of(model: DictConfig) -> Mapping[str, object] | None:
    """The part of config.json of a model that reads images; empty for one of text, None for one that is not known."""
    found = settings(model) or known(str(model.get("path"))) or {}
    parts = [found[key] for key in READS_MEDIA if key in found]
    return None if not found else parts[0] if parts and isinstance(parts[0], Mapping) else {}


def modules(model: DictConfig) -> list[str] | None:
    """The names of the modules that have a matrix, from the headers of the safetensors files; None where unknown."""
    folder = _folder(model.get("path"))
    if folder is None:
        return None
    shapes: dict[str, Sequence[int]] = {}
    for file in (file for file in weight_files(folder) if file.suffix == ".safetensors"):
        with contextlib.suppress(OSError, ValueError):  # `check_model` reports a file that is cut or missing
            shapes |= shapes_in(file)
    return [name[: -len(".weight")] for name in shapes if name.endswith(".weight") and len(shapes[name]) > 1] or None


@dataclass(frozen=True)
class Chat:
    """A tokenizer and its chat template."""

    tokenizer: Any
    template: str

    def render(self, messages: Sequence[Fields], settings: Mapping[str, object]) -> str:
        """The text of a prompt; raises ValueError where the template does not take the messages."""
        import jinja2

        options = {"chat_template": self.template, "tokenize": False, "add_generation_prompt": True, **settings}
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), **options))
        except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ValueError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    def length(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)


def chat_of(model: DictConfig) -> Chat | None:
    """`model` is verl's section of it; None where no tokenizer is here that can be loaded: `check_model` says why."""
    folder = local_folder(str(model.get("tokenizer_path") or model.path))
    try:
        tokenizer = tokenizer_in(str(folder)) if folder else None
    except ConfigError:
        return None
    template = model.get("custom_chat_template") or getattr(tokenizer, "chat_template", None)
    return Chat(tokenizer, template) if isinstance(template, str) else None


@lru_cache(maxsize=16)
def tokenizer_in(folder: str) -> Any:
    """Raises ConfigError for one that transformers cannot load without code of its own."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # of many kinds, from several packages
        value = f"{folder} has no tokenizer that transformers loads: {str(error).partition(chr(10))[0]:.200}"
        fix = "save the tokenizer beside the model with tokenizer.save_pretrained"
        raise ConfigError(value, rule="a model folder holds a tokenizer", fix=fix) from error


def check_model(config: DictConfig) -> Iterator[Problem]:
    """A local folder must hold a model, its tokenizer and a chat template; a name on the hub is looked up in the cache
    of this machine."""
    model, place = config.actor_rollout_ref.model, "actor_rollout_ref.model"
    for key in ("tokenizer_path", "hf_config_path", "lora_adapter_path"):
        path = model.get(key)
        if isinstance(path, str) and not (is_remote(path) or is_hub_name(path) or Path(path).expanduser().is_dir()):
            yield missing(config, f"{place}.{key}", path, "a folder that exists, or a name of the hub")
    path, folder = model.path, local_folder(str(model.path or ""))
    if not isinstance(path, str) or not path.strip() or (path.endswith("/") and folder):
        fix = FIX if not folder else f"set the model path to {str(path).rstrip('/')}"
        yield ConfigError(f"{place}.path={path!r}", rule=f"it is {NOUN}, without a slash at its end", fix=fix)
    elif folder is None and (is_remote(path) or is_hub_name(path)):
        fix = f"run hf download {path}, and check again" if is_hub_name(path) else "download it and give its folder"
        yield ConfigWarning(f"{place}.path={path}", "not checked: it is not on this machine", fix)
    elif folder is None:
        yield missing(config, f"{place}.path", path, NOUN, FIX)
    else:
        yield from _look_into(folder, model)


def _look_into(folder: Path, model: DictConfig) -> Iterator[ConfigError]:
    rule, fix = "a model folder holds what save_pretrained writes", "save or download the model again"
    if not readable_json(folder / "config.json"):
        yield ConfigError(f"{folder} has no config.json that can be read", rule=rule, fix=fix)
    files = weight_files(folder)
    if not files:
        yield ConfigError(f"{folder} has no {WEIGHTS[0]}", rule=rule, fix=fix)
    for file in (file for file in files if file.suffix == ".safetensors"):
        try:
            shapes_in(file)
        except (ValueError, OSError) as error:
            yield ConfigError(f"{file} is not whole: {error}", rule=rule, fix=fix)
    if model.trust_remote_code:
        return  # Its tokenizer may be code, which no check runs.
    try:
        tokenizer = tokenizer_in(str(local_folder(str(model.get("tokenizer_path") or folder)) or folder))
    except ConfigError as error:
        yield error
        return
    if not (model.get("custom_chat_template") or tokenizer.chat_template):
        rule, fix = "prompts are lists of messages, which a chat template renders", "use an instruct model"
        fix = f"set tokenizer.chat_template and save the tokenizer again, or {fix}"
        yield ConfigError(f"{folder} has no chat template", rule=rule, fix=fix)
