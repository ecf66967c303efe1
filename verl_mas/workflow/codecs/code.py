"""A fenced block of code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_mas.workflow.codecs.base import Malformed, checked, only, visible

FENCE = re.compile(r"^ {0,3}```(.*)$")


@dataclass(frozen=True)
class CodeBlock:
    """The code in the only fenced block of a language; blocks of other languages are ignored."""

    language: str = "python"

    def prompt(self) -> str:
        return f"Write your code in one block that starts with ```{self.language} and ends with ```."

    def render(self, value: str) -> str:
        text = f"```{self.language}\n{value}\n```"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        blocks = fenced(visible(text))
        if isinstance(blocks, Malformed):
            return blocks
        value = only([body for language, body in blocks if language == self.language], f"{self.language} block")
        if isinstance(value, str) and not value.strip():
            return Malformed(f"an empty {self.language} block")
        return value


def fenced(text: str) -> list[tuple[str, str]] | Malformed:
    """Every (language, body) between fences."""
    blocks: list[tuple[str, str]] = []
    language, body = None, list[str]()
    for line in text.split("\n"):
        fence = FENCE.match(line)
        if fence is None:
            body.append(line)
        elif language is None:
            language, body = fence.group(1).strip().lower(), []
        elif fence.group(1).strip():
            return Malformed("a block inside a block")
        else:
            blocks.append((language, "\n".join(body)))
            language = None
    return blocks if language is None else Malformed("a block that is never closed")
