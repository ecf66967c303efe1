"""What codecs share: the Malformed outcome, and which part of a reply is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from verl_mas.errors import DataError

T = TypeVar("T")
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, eq=False)
class Malformed:
    """What `parse` returns if it cannot read a value: falsy, and equal only to itself."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Codec(Protocol[T]):
    """A text format: `prompt`, `render` and `parse`.

    `parse(render(value)) == value`; `parse` takes any text and never raises.
    """

    def prompt(self) -> str:
        """The sentence that asks a model for this format."""
        ...

    def render(self, value: T) -> str: ...

    def parse(self, text: str) -> T | Malformed: ...


def visible(text: str) -> str:
    """For codecs: the text after the thinking; empty if the thinking does not end."""
    _, closed, rest = text.rpartition(THINK_CLOSE)
    answer = rest if closed else text
    return answer.partition(THINK_OPEN)[0]


def only(found: Sequence[str], what: str) -> str | Malformed:
    """For codecs: the only value found, else Malformed; equal values count once."""
    values = set(found)
    if not values:
        return Malformed(f"no {what}")
    if len(values) > 1:
        return Malformed(f"more than one {what}: {len(values)} that differ")
    return values.pop()


def between(text: str, start: str, end: str) -> list[str] | Malformed:
    """For codecs: every text between `start` and `end`; Malformed if the two do not pair up."""
    texts: list[str] = []
    opened: int | None = None
    for mark in re.finditer(f"{re.escape(start)}|{re.escape(end)}", text):
        if (mark.group() == start) is not (opened is None):
            return Malformed(f"{start} and {end} do not pair up")
        if opened is None:
            opened = mark.end()
        else:
            texts.append(text[opened : mark.start()].strip())
            opened = None
    return texts if opened is None else Malformed(f"{start} and {end} do not pair up")


def checked(rendered: str, value: object, parsed: object) -> str:
    """For codecs: the rendered text; refused if `parse` would not read it as the same value."""
    if isinstance(parsed, Malformed) or parsed != value:
        raise DataError(
            f"{value!r} cannot be rendered",
            rule="parse(render(value)) == value",
            fix="remove the marks of the format, <think> tags, and blanks at both ends",
        )
    return rendered
