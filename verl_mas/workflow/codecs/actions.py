"""A list of actions from a fixed alphabet: `<actions>up, up, left</actions>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.errors import DataError
from verl_mas.workflow.codecs.base import Malformed, checked
from verl_mas.workflow.codecs.tag import Tag

WRAPPING = re.compile(r"[\[\]\"']")


@dataclass(frozen=True)
class ActionList:
    """Commas or blanks between actions; brackets and quotes are taken off. Case does not matter."""

    alphabet: tuple[str, ...]
    name: str = "actions"
    at_most: int = 64

    def __post_init__(self):
        words = [word.casefold() for word in self.alphabet]
        if len(set(words)) < len(words) or not all(re.fullmatch(r"\w+", word) for word in words):
            raise DataError(
                f"the alphabet {self.alphabet}",
                rule="actions are different words of letters, digits and _",
                fix="rename them",
            )

    def prompt(self) -> str:
        return (
            f"Give your actions in order, separated by commas, between <{self.name}> and </{self.name}>. "
            f"The actions are: {', '.join(self.alphabet)}. At most {self.at_most}."
        )

    def render(self, value: Sequence[str]) -> str:
        text = Tag(self.name).render(", ".join(value))
        return checked(text, tuple(value), self.parse(text))

    def parse(self, text: str) -> tuple[str, ...] | Malformed:
        body = Tag(self.name).parse(text)
        if isinstance(body, Malformed):
            return body
        known = {word.casefold(): word for word in self.alphabet}
        words = WRAPPING.sub(" ", body).replace(",", " ").split()
        strangers = [word for word in words if word.casefold() not in known]
        if strangers:
            return Malformed(f"{strangers[0][:40]!r} is no action")
        if not 0 < len(words) <= self.at_most:
            return Malformed(f"{len(words)} actions, not 1 to {self.at_most}")
        return tuple(known[word.casefold()] for word in words)
