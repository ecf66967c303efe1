"""Reads a model's folder: config.json, the headers of weight files, and the tokenizer with its chat template, which
transformers loads. No tensor is read."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION
from verl_mas.errors import ConfigError, ForeignError, foreign
from verl_mas.planning.known_models import known
from verl_mas.planning.model import ModelSize, size_of
from verl_mas.util import installed_version
from verl_mas.verl_.types import Fields

# transformers reads the first of these files that exists. If it is an index, transformers reads the files in the index.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# Models that carry a state from token to token (linear attention, Mamba, convolutions) have a key from STATE in their
# config.json, or a layer type from STATEFUL.
STATE = {"linear_conv_kernel_dim", "conv_L_cache", "mamba_d_conv", "mamba_d_state", "ssm_state_size", "state_size"}
STATEFUL = {"linear_attention", "mamba", "conv"}
# Keys in config.json of models that read more than text. The config.json of such a model has at least one of the keys.
READS_MEDIA = ("vision_config", "audio_config", "thinker_config")


def local_folder(path: str) -> Path | None:
    """Return the folder of a model on this machine; for a name on the hub, its latest snapshot in the cache."""
    folder = Path(path).expanduser()
    if folder.is_dir() or not is_hub_name(path):
        return folder if folder.is_dir() else None
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser() / f"models--{path.replace('/', '--')}"
    revision = cache / "refs" / "main"
    snapshot = cache / "snapshots" / (revision.read_text().strip() if revision.is_file() else "none")
    return snapshot if (snapshot / "config.json").exists() else None


def is_hub_name(path: str) -> bool:
    """Whether a path has the form owner/name and is not a folder here."""
    folder = Path(path).expanduser()
    return not (folder.is_dir() or folder.is_absolute() or path.count("/") != 1 or path.startswith((".", "~")))


def readable_json(file: Path) -> Mapping[str, object]:
    """Return the JSON object in a file; empty if the file is missing or unreadable, which `check_model` reports."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shapes_in(file: Path) -> Mapping[str, Sequence[int]]:
    """The shapes of the tensors in a safetensors file, from its header. Raises ValueError for an incomplete file."""
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


def _in_folder(model: DictConfig) -> Mapping[str, object]:
    folder = _folder(model.get("hf_config_path")) or _folder(model.get("path"))
    return readable_json(folder / "config.json") if folder else {}


def settings(model: DictConfig) -> Mapping[str, object]:
    """The model's config.json, or its entry in the table of known models; empty if the model is in neither place."""
    return _in_folder(model) or known(str(model.get("path"))) or {}


def fields(model: DictConfig) -> Mapping[str, object]:
    """Like `settings`, with the fields of the text model merged into it if the model also reads images."""
    found = settings(model)
    text = found.get("text_config")
    return {**found, **(text if isinstance(text, Mapping) else {})}


def model_number(model: DictConfig, key: str) -> int | None:
    """Return a field of the model's config.json, or the override of the field for verl. None if the field is missing or
    not an integer."""
    found = OmegaConf.select(model, f"override_config.{key}") or fields(model).get(key)
    return found if type(found) is int else None


def is_stateful(model: DictConfig) -> bool:
    """Whether the model carries a state from token to token, in addition to attention."""
    found = fields(model)
    kinds = found.get("layer_types")
    return bool(STATE & found.keys() or (isinstance(kinds, list) and STATEFUL & {*map(str, kinds)}))


def has_own_head(model: DictConfig) -> bool:
    """Whether the output layer certainly has weights of its own, not tied to the embedding."""
    tied = fields(model).get("tie_word_embeddings")
    return tied is False or (tied is None and "lm_head" in (modules(model) or ()))


def vision_of(model: DictConfig) -> Mapping[str, object] | None:
    """The vision part of a model's config.json; empty for a text model, None if the model is not known."""
    found = settings(model)
    parts = [found[key] for key in READS_MEDIA if key in found]
    return None if not found else parts[0] if parts and isinstance(parts[0], Mapping) else {}


def modules(model: DictConfig) -> list[str] | None:
    """The names of the modules that have a matrix, from the headers of the safetensors files; None if they are
    unknown."""
    folder = _folder(model.get("path"))
    if folder is None:
        return None
    shapes: dict[str, Sequence[int]] = {}
    for file in (file for file in weight_files(folder) if file.suffix == ".safetensors"):
        with contextlib.suppress(OSError, ValueError):  # `check_model` reports files that are incomplete or missing
            shapes |= shapes_in(file)
    return [name[: -len(".weight")] for name in shapes if name.endswith(".weight") and len(shapes[name]) > 1] or None


@dataclass(frozen=True)
class Chat:
    """A tokenizer and its chat template."""

    tokenizer: Any
    template: str

    def render(self, messages: Sequence[Fields], settings: Mapping[str, object]) -> str:
        """Render a prompt as text. Raises ValueError if the template cannot render the messages."""
        import jinja2

        options = {"chat_template": self.template, "tokenize": False, "add_generation_prompt": True, **settings}
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), **options))
        except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ValueError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    def length(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)


def chat_of(model: DictConfig) -> Chat | None:
    """Load the tokenizer and chat template. `model` is verl's section. Returns None if no tokenizer can be loaded here;
    `check_model` reports the reason."""
    folder = local_folder(str(model.get("tokenizer_path") or model.path))
    try:
        tokenizer = tokenizer_in(str(folder)) if folder else None
    except ConfigError:
        return None
    template = model.get("custom_chat_template") or getattr(tokenizer, "chat_template", None)
    return Chat(tokenizer, template) if isinstance(template, str) else None


@lru_cache(maxsize=16)
def tokenizer_in(folder: str) -> Any:
    """Load a tokenizer. Raises ConfigError if transformers cannot load it without custom code."""
    from transformers import AutoTokenizer

    try:
        with foreign():
            return AutoTokenizer.from_pretrained(folder)
    except ForeignError as failed:
        value = f"{folder} has no tokenizer that transformers loads: {str(failed.error).partition(chr(10))[0]:.200}"
        fix = "save the tokenizer beside the model with tokenizer.save_pretrained"
        raise ConfigError(value, rule="a model folder holds a tokenizer", fix=fix) from failed.error


class UnknownSize(ConfigError):
    """The architecture of the model, and so its size, is not known."""


def size_in(model: DictConfig, who: str) -> tuple[ModelSize, str]:
    """Return the size of a model, and where it was read. Raises UnknownSize, whose message begins with `who`."""
    found, source = settings(model), f"config.json of {model.get('hf_config_path') or model.path}"
    if not _in_folder(model):
        source = "a table in verl-mas, as no config.json is here"
    if not found:
        value, rule = f"the size of model.path={model.path} is not known", "the plan reads the model's config.json"
        fix = f"put config.json into a folder, and set {SECTION}.model.hf_config_path to it"
        raise UnknownSize(f"{who}{value}", rule=rule, fix=fix)
    if own := OmegaConf.select(model, "override_config.max_position_embeddings"):
        found = {**found, "max_position_embeddings": own}
    try:
        with foreign():
            return size_of(found), source
    except ForeignError as failed:
        # For an unknown model type, the error of transformers ends with a list of all known types. Remove this list.
        value = f"{who}{source}: {str(failed.error).partition('. Should contain')[0]}"
        rule = f"the plan is made with the model that transformers {installed_version('transformers')} builds from it"
        fix = "set model.path to a model that it has, or install a version that has this one and that verl allows"
        raise UnknownSize(value, rule=rule, fix=fix) from failed.error
