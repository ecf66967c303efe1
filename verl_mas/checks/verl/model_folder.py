"""Finds a model's folder and reads its files, without loading the model: JSON, headers of weights, chat template."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from verl_mas.errors import InvalidInput
from verl_mas.planning.known_models import known
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    import jinja2


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


def read_json(file: Path) -> Mapping[str, object]:
    """The object in a file; empty if there is no file. A file that is no JSON object is refused."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise not_json(file, str(error)) from error
    if not isinstance(value, dict):
        raise not_json(file, f"it holds {type(value).__name__}")
    return value


def not_json(file: Path, why: str) -> InvalidInput:
    rule = "a model folder has the files that save_pretrained writes"
    return InvalidInput(f"{file} is not a JSON object: {why}", rule=rule, fix="save or download the file again")


def readable_json(file: Path) -> Mapping[str, object]:
    """The same; empty also for a file that `check_model` refuses."""
    try:
        return read_json(file)
    except (InvalidInput, OSError):
        return {}


def shapes_in(file: Path) -> Mapping[str, Sequence[int]]:
    """Of the tensors in a file of weights, by name, without reading them. Raises ValueError for a file that is not
    whole."""
    if file.suffix == ".bin":
        return _pickled(file)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  # no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _pickled(file: Path) -> Mapping[str, Sequence[int]]:
    """Of a file that torch.save wrote."""
    import torch

    try:
        found = torch.load(file, map_location="meta", mmap=zipfile.is_zipfile(file), weights_only=True)
        return {name: list(tensor.shape) for name, tensor in found.items()}
    # AttributeError: of a pickle of something else.
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, AttributeError) as error:
        raise ValueError(str(error).partition("\n")[0] or "it is empty") from error


# transformers reads the first of these, or the files that it lists.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def weight_files(folder: Path) -> list[Path]:
    for name in WEIGHTS:
        if (file := folder / name).is_file():
            named = readable_json(file).get("weight_map") if file.suffix == ".json" else {"": name}
            return sorted({folder / str(part) for part in named.values()}) if isinstance(named, dict) else []
    return []


def model_number(model: DictConfig, key: str) -> int | None:
    """A number of the model's config.json, as verl reads it; None for one that is neither here nor a known one."""
    found = OmegaConf.select(model, f"override_config.{key}") or fields(model).get(key)
    return found if type(found) is int else None


def fields(model: DictConfig) -> Mapping[str, object]:
    """Of the model's config.json, with those of its text where it also reads images; of a known model that is not here;
    else empty."""
    found = settings(model)
    if not found and not model.get("hf_config_path"):
        found = known(str(model.get("path"))) or {}
    text = found.get("text_config")
    return {**found, **(text if isinstance(text, Mapping) else {})}


# Keys, and kinds of layers, of models that carry a state from token to token: linear attention, Mamba, convolutions.
STATE = {"linear_conv_kernel_dim", "conv_L_cache", "mamba_d_conv", "mamba_d_state", "ssm_state_size", "state_size"}
STATEFUL = {"linear_attention", "mamba", "conv"}


def is_stateful(model: DictConfig) -> bool:
    """Whether a token reads more of those before it than its attention lets it."""
    found = fields(model)
    kinds = found.get("layer_types")
    return bool(STATE & found.keys() or (isinstance(kinds, list) and STATEFUL & {*map(str, kinds)}))


def has_own_head(model: DictConfig) -> bool:
    """Whether the weights of the output layer are surely not those of the embedding."""
    tied = fields(model).get("tie_word_embeddings")
    return tied is False or (tied is None and "lm_head" in (modules(model) or ()))


# A model's config.json has one of these if it reads more than text.
READS_MEDIA = ("vision_config", "audio_config", "thinker_config")


def vision_of(model: DictConfig) -> Mapping[str, object] | None:
    """The part of config.json of a model that reads images; empty for one of text, None for one that is not known."""
    found = settings(model) or known(str(model.get("path"))) or {}
    parts = [found[key] for key in READS_MEDIA if key in found]
    return None if not found else parts[0] if parts and isinstance(parts[0], Mapping) else {}


def settings(model: DictConfig) -> Mapping[str, object]:
    """The model's config.json; empty where it is not here."""
    folder = _folder(model.get("hf_config_path")) or _folder(model.get("path"))
    return readable_json(folder / "config.json") if folder else {}


def modules(model: DictConfig, *, vectors: bool = False) -> list[str] | None:
    """The names of the modules that have a matrix, from the headers of the safetensors files; None where unknown.

    `vectors`: also of those that have a vector. A norm has one, so no adapter can be on it.
    """
    folder = _folder(model.get("path"))
    if folder is None:
        return None
    index = readable_json(folder / "model.safetensors.index.json").get("weight_map")
    known: Mapping[str, object] = index if isinstance(index, dict) else {}
    shapes: dict[str, Sequence[int]] = {}
    for file in sorted(set(map(str, known.values()))) or ["model.safetensors"]:
        with contextlib.suppress(OSError, ValueError):  # `check_model` reports a file that is cut or missing
            shapes |= shapes_in(folder / file)
    # Of a file that is not here, the shape is not known.
    flat = {name for name, shape in shapes.items() if len(shape) == 1}
    weights = [name for name in {**known, **shapes} if name.endswith(".weight") and (vectors or name not in flat)]
    return [name.removesuffix(".weight") for name in weights] or None


def _folder(path: object) -> Path | None:
    return local_folder(path) if isinstance(path, str) and path else None


# Renders and counts prompts as the model's tokenizer does. Importing transformers for this takes seconds.


SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# transformers marks replies with this tag, which renders as its content.
GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")


@dataclass(frozen=True)
class ChatTemplate:
    folder: Path
    template: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: DictConfig) -> ChatTemplate | None:
        """`model` is verl's section of it; None where its folder is not here."""
        folder = local_folder(str(model.get("tokenizer_path") or model.path))
        return cls.of(folder, model.get("custom_chat_template")) if folder else None

    @classmethod
    def of(cls, folder: Path, custom: str | None = None) -> ChatTemplate | None:
        """The template of a tokenizer's folder, or `custom` with its special tokens; None if there is none."""
        settings = read_json(folder / "tokenizer_config.json")
        template = custom or _template(folder, settings)
        if template is None:
            return None
        tokens = {f"{name}_token": settings.get(f"{name}_token") for name in SPECIAL_TOKENS}
        texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
        return cls(folder, template, {name: value for name, value in texts.items() if isinstance(value, str)})

    def render(self, messages: Sequence[Fields], settings: Mapping[str, object]) -> str:
        """The text of a prompt; raises ValueError where the template does not take the messages."""
        import jinja2

        try:
            return _compiled(self.template).render(
                messages=list(messages), add_generation_prompt=True, **{**self.special_tokens, **settings}
            )
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno} of the template: {error.message}") from error
        except (jinja2.TemplateError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    def unasked(self) -> str:
        """What it writes before a reply of the assistant that follows, and not at the end of a prompt."""
        task, reply = {"role": "user", "content": "task"}, {"role": "assistant", "content": "reply"}
        try:
            prompt, whole = (self.render(messages, {}) for messages in ([task], [task, reply]))
        except ValueError:
            return ""  # The first prompt of a session is rendered, too.
        opens = whole.removeprefix(prompt).partition("reply")[0] if whole.startswith(prompt) else ""
        return opens if "assistant" in opens.lower() else ""

    def variables(self) -> Set[str]:
        """The names that it reads and does not set."""
        import jinja2.meta

        try:
            return jinja2.meta.find_undeclared_variables(_environment().parse(GENERATION.sub("", self.template)))
        except jinja2.TemplateError:
            return set()  # `render` says why.

    def length(self, text: str, limit: int) -> int | None:
        """The number of tokens; None if it is surely within the limit, or the tokenizer is not of the fast kind."""
        file = self.folder / "tokenizer.json"
        # A token has at least one byte, and a large tokenizer takes half a second to load.
        if len(text.encode()) <= limit or not file.is_file():
            return None
        from tokenizers import Tokenizer

        return len(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)


@cache
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(GENERATION.sub("", template))


@cache
def _environment() -> jinja2.Environment:
    """That which transformers gives a template."""
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _template(folder: Path, settings: Mapping[str, object]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = read_json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


def _raise(message: str) -> None:
    raise ValueError(message)
