"""A choice between a few words: `<verify>approve</verify>`."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, TypeVar

from verl_mas.workflow.codecs.base import Malformed
from verl_mas.workflow.codecs.tag import Tag

C = TypeVar("C", bound="Choice")


class Choice(Enum):
    """One of a few words: `class Verdict(Choice, tag="verify")`, with members like `APPROVE = "approve"`."""

    __tag__: ClassVar[str]

    def __init_subclass__(cls, tag: str = "answer", **kwargs: object):
        super().__init_subclass__(**kwargs)
        cls.__tag__ = tag

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
