"""A few letters: `<message>c e f</message>`, or `cef` for a tiny model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_mas.workflow.codecs.base import Malformed, checked
from verl_mas.workflow.codecs.tag import Tag


@dataclass(frozen=True)
class Letters:
    """1 to `at_most` letters of an alphabet, in any case, with blanks or commas between them."""

    alphabet: str
    at_most: int
    # None: the whole reply is the letters.
    tag: str | None

    def prompt(self) -> str:
        many = "one letter" if self.at_most == 1 else f"1 to {self.at_most} letters"
        place = f" between <{self.tag}> and </{self.tag}>" if self.tag else ""
        return f"Give {many} of {', '.join(self.alphabet)}{place}."

    def render(self, value: str) -> str:
        text = Tag(self.tag).render(" ".join(value)) if self.tag else value
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> str | Malformed:
        body = Tag(self.tag).parse(text) if self.tag else text
        if isinstance(body, Malformed):
            return body
        letters = re.findall(r"\w", body.casefold())
        if not re.fullmatch(r"\s*(?:\w[\s,]*)+", body) or not set(letters) <= set(self.alphabet):
            return Malformed(f"{body[:40]!r} is not letters of {self.alphabet}")
        return (
            "".join(letters)
            if len(letters) <= self.at_most
            else Malformed(f"{len(letters)} letters, not 1 to {self.at_most}")
        )
