"""Text formats, each with a prompt fragment, a renderer and a parser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import ClassVar, NoReturn, Protocol, TypeAlias, TypeVar

from verl_mas.errors import DataError, WorkflowError
from verl_mas.verl_.types import Fields

__all__ = ["ActionList", "Boxed", "Choice", "CodeBlock", "Codec", "JsonBlock", "Malformed", "Tag"]

T = TypeVar("T")
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, eq=False)
class Malformed:
    """Result of `parse` if it cannot read a value. It is falsy, and equal only to itself."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Codec(Protocol[T]):
    """A text format: `prompt`, `render` and `parse`.

    `parse(render(value)) == value`; `parse` takes any text and never raises.
    """

    def prompt(self) -> str:
        """Return the sentence that asks a model for this format."""
        ...

    def render(self, value: T) -> str: ...

    def parse(self, text: str) -> T | Malformed: ...


def visible(text: str) -> str:
    """Return the text after the last `</think>` and before any `<think>` that is not closed. For use in codecs."""
    _, closed, rest = text.rpartition(THINK_CLOSE)
    answer = rest if closed else text
    return answer.partition(THINK_OPEN)[0]


def only(found: Sequence[str], what: str) -> str | Malformed:
    """Return the only value found, or Malformed. Equal values count once, and an empty value is malformed.

    For use in codecs.
    """
    values = set(found)
    if len(values) > 1:
        return Malformed(f"more than one {what}: {len(values)} that differ")
    value = next(iter(values), None)
    if value is None:
        return Malformed(f"no {what}")
    return value if value.strip() else Malformed(f"an empty {what}")


def between(text: str, start: str, end: str) -> list[str] | Malformed:
    """List all texts between `start` and `end`, or return Malformed if the two do not pair up. For use in codecs."""
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
    """Return the rendered text. Raises DataError if `parse` would read another value from it. For use in codecs."""
    if isinstance(parsed, Malformed) or parsed != value:
        fix = "remove the marks of the format, <think> tags, and blanks at both ends"
        raise DataError(f"{value!r} cannot be rendered", rule="parse(render(value)) == value", fix=fix)
    return rendered


@dataclass(frozen=True)
class Tag:
    """The text between `<name>` and `</name>`."""

    name: str = "answer"

    def prompt(self) -> str:
        return f"Put your answer between <{self.name}> and </{self.name}>."

    def render(self, value: str) -> str:
        text = f"<{self.name}>{value}</{self.name}>"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        texts = between(visible(text), f"<{self.name}>", f"</{self.name}>")
        return texts if isinstance(texts, Malformed) else only(texts, f"<{self.name}>")


C = TypeVar("C", bound="Choice")


class Choice(Enum):
    """One of a few words: `class Verdict(Choice, tag="verify")`, with members like `APPROVE = "approve"`."""

    __tag__: ClassVar[str]

    def __init_subclass__(cls, tag: str = "answer", **kwargs: object):
        super().__init_subclass__(**kwargs)
        cls.__tag__ = tag

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            value, fix = f"{self} is compared with {other!r}", f"compare it with {type(self).__name__}.{self.name}"
            raise WorkflowError(value, rule="a choice is equal to no text", fix=fix)
        return self is other

    __hash__ = Enum.__hash__

    @classmethod
    def prompt(cls) -> str:
        choices = " or ".join(Tag(cls.__tag__).render(choice.value) for choice in cls)
        return f"End with {choices}."

    @classmethod
    def render(cls: type[C], value: C) -> str:
        return Tag(cls.__tag__).render(value.value)

    @classmethod
    def parse(cls: type[C], text: str) -> C | Malformed:
        word = Tag(cls.__tag__).parse(text)
        if isinstance(word, Malformed):
            return word
        for choice in cls:
            if word.casefold() == choice.value.casefold():
                return choice
        return Malformed(f"{word[:40]!r} is none of {[choice.value for choice in cls]}")


BOX = "\\boxed{"
BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class Boxed:
    r"""The text in the only `\boxed{...}` of a reply."""

    def prompt(self) -> str:
        return "Put your final answer within \\boxed{}."

    def render(self, value: str) -> str:
        text = f"{BOX}{value}}}"
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        answer, boxes, end = visible(text), [], 0
        while (box := answer.find(BOX, end)) >= 0:
            start = box + len(BOX)
            closing = _closing_brace(answer, start)
            if closing is None:
                return Malformed("a box that is never closed")
            end = closing
            boxes.append(answer[start:end].strip())
            if BOX in boxes[-1]:
                return Malformed("a box inside a box")
        return only(boxes, "box")


def _closing_brace(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the open brace before `start`. Escaped braces do not count."""
    depth = 1
    for mark in BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(mark.group(), 0)
        if depth == 0:
            return mark.start()
    return None


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
        return only([body for language, body in blocks if language == self.language], f"{self.language} block")


def fenced(text: str) -> list[tuple[str, str]] | Malformed:
    """List (language, body) of every fenced block."""
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


JsonObject: TypeAlias = Fields


@dataclass(frozen=True)
class JsonBlock:
    """A JSON object, alone or in a fenced block.

    Each of `keys` must be present with its type; other keys are allowed.
    """

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
            # JSON does not distinguish 60 from 60.0, so an integer is accepted as a float. A bool is an int in Python,
            # but not in JSON, so a bool is not accepted as a number.
            if kind is float and type(value[key]) is int and abs(value[key]) < 1e308:
                value[key] = float(value[key])
            if not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is not bool):
                return Malformed(f"{key!r} is not of type {kind.__name__}")
        return value


def _object(text: str) -> JsonObject | Malformed:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not JSON: {type(error).__name__}: {error}"[:200])
    return value if isinstance(value, dict) else Malformed(f"a JSON {type(value).__name__}, not an object")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def finite(number: str) -> float:
    """Parse a float. If the number is too large for a float, raise ValueError instead of returning infinity."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large")
    return value


def refuse(constant: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which Python's parser accepts although they are not JSON."""
    raise ValueError(f"{constant} is not JSON")


WRAPPING = re.compile(r"[\[\]\"']")


@dataclass(frozen=True)
class ActionList:
    """Actions in order: `ActionList(("up", "down"))` reads `<actions>up, down</actions>`.

    `actions` are words, in upper or lower case, or a pattern that matches one action. Whitespace, commas, brackets and
    quotes between actions are ignored, so a printed Python list can be read; any other text is malformed.
    """

    actions: tuple[str, ...] | re.Pattern[str]
    at_most: int = 64
    tag: str | None = "actions"  # None: the whole reply is the list
    help: str | None = None  # description of the actions for the prompt; required with a pattern

    def __post_init__(self) -> None:
        if isinstance(self.actions, re.Pattern):
            if self.help is None:
                value = f"actions={self.actions.pattern!r} without help"
                rule = "a pattern needs help, which the prompt shows"
                raise DataError(value, rule=rule, fix="give help='U, D: one cell up, down'")
        elif len(self._words) < len(self.actions) or not all(re.fullmatch(r"\w+", word) for word in self._words):
            rule = "actions are different words of letters, digits and _"
            raise DataError(f"actions={self.actions}", rule=rule, fix="rename them, or give a pattern")

    def prompt(self) -> str:
        place = f" between <{self.tag}> and </{self.tag}>" if self.tag else ""
        known = self.help or ", ".join(self._words.values())
        return f"Give 1 to {self.at_most} actions in order{place}. Actions are {known}."

    def render(self, value: Sequence[str]) -> str:
        text = Tag(self.tag).render(" ".join(value)) if self.tag else "".join(value)
        return checked(text, list(value), self.parse(text))

    def parse(self, text: str) -> list[str] | Malformed:
        body = Tag(self.tag).parse(text) if self.tag else text
        if isinstance(body, Malformed):
            return body
        body = WRAPPING.sub(" ", body)
        if self._words:
            body = body.casefold()
        action = self._action
        if not re.fullmatch(rf"\s*(?:(?:{action.pattern})[\s,]*)+", body, action.flags):
            return Malformed(f"{body[:40]!r} is not a list of actions")
        actions = [match.group() for match in action.finditer(body)]
        if len(actions) > self.at_most:
            return Malformed(f"{len(actions)} actions, not 1 to {self.at_most}")
        return [self._words.get(action, action) for action in actions]

    @cached_property
    def _words(self) -> dict[str, str]:
        """Maps case-folded words to words; empty if `actions` is a pattern."""
        return {} if isinstance(self.actions, re.Pattern) else {word.casefold(): word for word in self.actions}

    @cached_property
    def _action(self) -> re.Pattern[str]:
        if isinstance(self.actions, re.Pattern):
            return self.actions
        return re.compile(rf"\b(?:{'|'.join(self._words)})\b")
