"""What every codec shares: the third outcome, and which part of a reply is read."""

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
    """What `parse` gives where it can read no value: falsy, and equal to nothing but itself."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Codec(Protocol[T]):
    """A text format: `prompt`, `render` and `parse`.

    `parse(render(value)) == value`; `parse` takes any text and never raises.
    """

    def prompt(self) -> str:
        """The sentence that tells a model how to answer."""
        ...

    def render(self, value: T) -> str: ...

    def parse(self, text: str) -> T | Malformed: ...


def visible(text: str) -> str:
    """For codecs: the text after the thinking; thinking that never ends leaves nothing."""
    _, closed, rest = text.rpartition(THINK_CLOSE)
    answer = rest if closed else text
    return answer.partition(THINK_OPEN)[0]


def only(found: Sequence[str], what: str) -> str | Malformed:
    """For codecs: the one value that was found, else Malformed; the same value twice is one value."""
    values = set(found)
    if not values:
        return Malformed(f"no {what}")
    if len(values) > 1:
        return Malformed(f"{len(values)} different {what}s")
    return values.pop()


def between(text: str, start: str, end: str) -> list[str] | Malformed:
    """For codecs: every text between `start` and `end`; a mark without its partner is Malformed."""
    found: list[str] = []
    opened: int | None = None
    for mark in re.finditer(f"{re.escape(start)}|{re.escape(end)}", text):
        if (mark.group() == start) is not (opened is None):
            return Malformed(f"{start} and {end} do not pair up")
        if opened is None:
            opened = mark.end()
        else:
            found.append(text[opened : mark.start()].strip())
            opened = None
    return found if opened is None else Malformed(f"{start} and {end} do not pair up")


def checked(rendered: str, value: object, parsed: object) -> str:
    """For codecs: the rendered text, refused where it would not be read back as the same value."""
    if isinstance(parsed, Malformed) or parsed != value:
        raise DataError(
            f"{value!r} cannot be rendered",
            rule="what is rendered must be read back as the same value",
            fix="take out marks of the format, of thinking, and blank ends",
        )
    return rendered
