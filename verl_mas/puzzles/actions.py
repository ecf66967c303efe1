"""The text protocol of a puzzle's actions: between tags for language models, bare for tiny ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.puzzles.base import Puzzle
from verl_mas.workflow.codecs import Malformed, Tag
from verl_mas.workflow.codecs.actions import WRAPPING
from verl_mas.workflow.codecs.base import checked


@dataclass(frozen=True)
class Actions:
    """1 to `at_most` actions of a puzzle. Blanks, commas, brackets and quotes between them are fine: a printed list is
    a list. Anything else is not."""

    puzzle: type[Puzzle]
    at_most: int
    # None: the reply is the actions and nothing else.
    tag: str | None = "actions"

    def prompt(self) -> str:
        place = f" between <{self.tag}> and </{self.tag}>" if self.tag else ""
        return f"Give 1 to {self.at_most} actions in order{place}. Actions are {self.puzzle.action_help}."

    def render(self, value: Sequence[str]) -> str:
        text = Tag(self.tag).render(" ".join(value)) if self.tag else "".join(value)
        return checked(text, list(value), self.parse(text))

    def parse(self, text: str) -> list[str] | Malformed:
        body = Tag(self.tag).parse(text) if self.tag else text
        if isinstance(body, Malformed):
            return body
        pattern, body = self.puzzle.action_pattern, WRAPPING.sub(" ", body)
        if not re.fullmatch(rf"\s*(?:{pattern.pattern}[\s,]*)+", body):
            return Malformed(f"{body[:40]!r} is not a list of actions")
        actions = pattern.findall(body)
        if len(actions) > self.at_most:
            return Malformed(f"{len(actions)} actions, not 1 to {self.at_most}")
        return actions
