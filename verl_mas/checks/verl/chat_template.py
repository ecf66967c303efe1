"""Renders and counts prompts as a model's tokenizer does. Importing transformers for this takes seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from verl_mas.checks.verl.model_folder import local_folder, read_json
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    import jinja2

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

    def length(self, text: str, limit: int) -> int | None:
        """The number of tokens; None if it is surely within the limit, or the tokenizer is not of the fast kind."""
        file = self.folder / "tokenizer.json"
        # A token has at least one byte, and a large tokenizer takes half a second to load.
        if len(text.encode()) <= limit or not file.exists():
            return None
        from tokenizers import Tokenizer

        return len(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)


@cache
def _compiled(template: str) -> jinja2.Template:
    """In the environment that transformers gives a template."""
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment.from_string(GENERATION.sub("", template))


def _template(folder: Path, settings: Mapping[str, object]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text()
    template = read_json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


def _to_json(value: object, **layout: object) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **layout})  # type: ignore[arg-type]


def _raise(message: str) -> None:
    raise ValueError(message)
