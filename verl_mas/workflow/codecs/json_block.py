"""A JSON object, alone or in a fenced block."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from verl_mas.workflow.codecs.base import Malformed, checked, visible
from verl_mas.workflow.codecs.code import fenced

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class JsonBlock:
    """A JSON object, alone or in a fenced block. Each of `keys` must be present with its type; more are allowed."""

    keys: Mapping[str, type] = field(default_factory=dict)

    def prompt(self) -> str:
        wanted = ", ".join(f'"{key}" ({kind.__name__})' for key, kind in self.keys.items())
        return f"Answer with one JSON object{f' with the keys {wanted}' if wanted else ''} in a ```json block."

    def render(self, value: JsonObject) -> str:
        try:
            text = f"```json\n{json.dumps(value, ensure_ascii=False, allow_nan=False)}\n```"
        except ValueError:
            return checked("", value, Malformed("not JSON"))
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> JsonObject | Malformed:
        answer = visible(text)
        blocks = fenced(answer)
        if isinstance(blocks, Malformed):
            return blocks
        bodies = [body for language, body in blocks if language == "json"] or [answer]
        values = [_object(body) for body in bodies]
        for value in values:
            if isinstance(value, Malformed):
                return value
            if value != values[0]:
                return Malformed(f"{len(values)} JSON blocks that differ")
        return self._with_keys(values[0])

    def _with_keys(self, value: JsonObject | Malformed) -> JsonObject | Malformed:
        if isinstance(value, Malformed):
            return value
        for key, kind in self.keys.items():
            if key not in value:
                return Malformed(f"no key {key!r}")
            # bool is an int in Python, not in JSON.
            if not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is not bool):
                return Malformed(f"{key!r} is not of type {kind.__name__}")
        return value


def _object(text: str) -> JsonObject | Malformed:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not JSON: {type(error).__name__}: {error}"[:200])
    return value if isinstance(value, dict) else Malformed(f"a JSON {type(value).__name__}, not an object")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _finite(number: str) -> float:
    """A number too large for a float is not infinity."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
