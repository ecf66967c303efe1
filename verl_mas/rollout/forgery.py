"""Second check for forged special tokens, after `workflow.marks`.

`marks` checks single texts, but a chat template may add the missing half of a mark, which is then a special token. So
this module renders the prompt, and compares its number of special tokens with that of a harmless prompt of the same
shape.
"""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from jinja2 import TemplateError

from verl_mas.errors import FaultKind, SessionFault
from verl_mas.util.text import in_texts
from verl_mas.workflow.client import Message
from verl_mas.workflow.codecs import JsonObject

Render: TypeAlias = Callable[[list[Message], list[JsonObject]], Sequence[int]]
MOST_SHAPES = 4096
# Keys whose values decide which marks a template writes.
STRUCTURE = ("role", "type")
DELIMITER = re.compile(r"[<>|\[\]\uff5c]")
IDENTIFIER = re.compile(r"\w+")


class Net:
    """Checks the rendered prompts of a policy. `special`: the tokens that mark turns and media in these prompts."""

    def __init__(self, special: frozenset[int]):
        self._special = special
        self._counts: dict[str, int | None] = {}

    def check(
        self, messages: list[Message], tools: list[JsonObject], render: Render, ids: Sequence[int] | None = None
    ) -> None:
        """Raise SessionFault if a text of the prompt has become a special token. `ids`: the prompt, if it has been
        rendered already."""
        # Most prompts have no character with which marks begin or end, and need no further check.
        if in_texts(_apart, (messages, tools)) == (messages, tools):
            return
        found = self._count(render(messages, tools) if ids is None else ids)
        if found == self._harmless(messages, tools, render):
            return
        # The numbers also differ if the marks that the template itself writes depend on a text. To distinguish this
        # from a forgery, render the prompt with a space after each delimiter in its texts: a forged mark then
        # disappears, and the marks of the template remain.
        parts = [("the tools", messages, in_texts(_apart, tools))]
        for place, message in enumerate(messages):
            changed = [*messages[:place], in_texts(_apart, message), *messages[place + 1 :]]
            parts.append((f"messages[{place}], of role {message.get('role')},", changed, tools))
        for name, changed, with_tools in parts:
            if self._count(render(changed, with_tools)) != found:
                raise SessionFault(FaultKind.REFUSED, f"{name} would become a special token of the prompt")

    def _harmless(self, messages: list[Message], tools: list[JsonObject], render: Render) -> int | None:
        """Return the number of special tokens in a harmless prompt of this shape; None if the template refuses such a
        prompt."""
        plain = harmless(messages), harmless(tools)
        shape = json.dumps(plain, default=str)
        if shape not in self._counts:
            if len(self._counts) >= MOST_SHAPES:
                self._counts.clear()
            self._counts[shape] = None
            with suppress(TemplateError, ValueError, TypeError):
                self._counts[shape] = self._count(render(*plain))
        return self._counts[shape]

    def _count(self, ids: Sequence[int]) -> int:
        return sum(map(self._special.__contains__, ids))


def harmless(value: Any, name: str = "") -> Any:
    """Replace every text by one letter, and every key that is not an identifier by a short name."""
    if isinstance(value, str) and name == "arguments":
        with suppress(ValueError):
            return json.dumps(harmless(json.loads(value)))
    if isinstance(value, str):
        return value if name in STRUCTURE or not value.strip() else "x"
    if isinstance(value, dict):
        keys = [key if IDENTIFIER.fullmatch(str(key)) else f"x{place}" for place, key in enumerate(value)]
        return {key: harmless(item, key) for key, item in zip(keys, value.values(), strict=True)}
    return [harmless(item) for item in value] if isinstance(value, list) else value


def _apart(text: str) -> str:
    return DELIMITER.sub(r"\g<0> ", text)
