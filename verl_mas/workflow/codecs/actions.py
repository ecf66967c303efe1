"""A list of actions: `<actions>up up left</actions>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_mas.errors import DataError
from verl_mas.workflow.codecs.base import Malformed, checked
from verl_mas.workflow.codecs.tag import Tag

WRAPPING = re.compile(r"[\[\]\"']")


@dataclass(frozen=True)
class ActionList:
    """Actions in order: `ActionList(("up", "down"))` reads `<actions>up, down</actions>`.

    `actions` are words, in any case, or a pattern that matches one action. Blanks, commas, brackets and quotes between
    actions are ignored, so a printed Python list can be read; any other text is malformed.
    """

    actions: tuple[str, ...] | re.Pattern[str]
    at_most: int = 64
    # None: the whole reply is the list.
    tag: str | None = "actions"
    # What an action is, for the prompt; required with a pattern.
    help: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.actions, re.Pattern):
            if self.help is None:
                raise DataError(
                    f"actions={self.actions.pattern!r} without help",
                    rule="a pattern needs help, which the prompt shows",
                    fix="give help='U, D: one cell up, down'",
                )
        elif len(self._words) < len(self.actions) or not all(re.fullmatch(r"\w+", word) for word in self._words):
            raise DataError(
                f"actions={self.actions}",
                rule="actions are different words of letters, digits and _",
                fix="rename them, or give a pattern",
            )

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
        """Case-folded word -> word; empty with a pattern."""
        return {} if isinstance(self.actions, re.Pattern) else {word.casefold(): word for word in self.actions}

    @cached_property
    def _action(self) -> re.Pattern[str]:
        if isinstance(self.actions, re.Pattern):
            return self.actions
        return re.compile(rf"\b(?:{'|'.join(self._words)})\b")
