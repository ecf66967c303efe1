"""`<answer>42</answer>`, and a choice between a few words: `<verify>approve</verify>`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar

from verl_mas.workflow.codecs.base import Malformed, between, checked, only, visible


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
        if isinstance(texts, Malformed):
            return texts
        value = only(texts, f"<{self.name}>")
        return value or (value if isinstance(value, Malformed) else Malformed(f"empty <{self.name}>"))


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
