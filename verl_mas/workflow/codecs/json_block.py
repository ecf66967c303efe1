"""A JSON object, alone or in a fenced block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_mas.workflow.codecs.base import Malformed, checked, visible
from verl_mas.workflow.codecs.code import fenced


@dataclass(frozen=True)
class JsonBlock:
    """A JSON object, alone or in a fenced block. `keys` must be there, each with its type; others may be."""

    keys: Mapping[str, type] = field(default_factory=dict)

    def prompt(self) -> str:
        wanted = ", ".join(f'"{key}" ({kind.__name__})' for key, kind in self.keys.items())
        return f"Answer with one JSON object{f' with the keys {wanted}' if wanted else ''} in a ```json block."

    def render(self, value: dict[str, Any]) -> str:
        try:
            text = f"```json\n{json.dumps(value, ensure_ascii=False, allow_nan=False)}\n```"
        except ValueError:
            return checked("", value, Malformed("not JSON"))
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> dict[str, Any] | Malformed:
        shown = visible(text)
        blocks = fenced(shown)
        if isinstance(blocks, Malformed):
            return blocks
        bodies = [body for language, body in blocks if language == "json"] or [shown]
        values = [_object(body) for body in bodies]
        for value in values:
            if isinstance(value, Malformed):
                return value
            if value != values[0]:
                return Malformed(f"{len(values)} JSON blocks that differ")
        return self._with_keys(values[0])

    def _with_keys(self, value: dict[str, Any] | Malformed) -> dict[str, Any] | Malformed:
        if isinstance(value, Malformed):
            return value
        for key, kind in self.keys.items():
            if key not in value:
                return Malformed(f"no key {key!r}")
            # bool is an int in Python, not in JSON.
            if not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is not bool):
                return Malformed(f"{key!r} is not of type {kind.__name__}")
        return value


def _object(text: str) -> dict[str, Any] | Malformed:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not JSON: {type(error).__name__}: {error}"[:200])
    return value if isinstance(value, dict) else Malformed(f"a JSON {type(value).__name__}, not an object")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
