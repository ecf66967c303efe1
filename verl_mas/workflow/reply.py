"""The reply of an act: its text, and what its training row records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from verl_mas.errors import WorkflowError
from verl_mas.workflow.client import Generation, Message
from verl_mas.workflow.codecs.base import Codec, Malformed

T = TypeVar("T")


def check_reward(name: str, value: object) -> None:
    """Refuses a reward that is not a finite number, where it is set: it must not reach an advantage or an average."""
    if value is None:
        return
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise WorkflowError(
            f"{name} is {value!r:.200}",
            rule="a reward is a finite number",
            fix="set None where there is no reward, and a number for a reply that could not be read",
        )


@dataclass(eq=False, repr=False)
class Reply:
    """What an act returns: its `text`, to `parse`, and the act's own `reward`, to set.

    `team_reward` is the team part of a candidate, where it differs from that of the session.
    """

    agent: str
    role: str
    policy: str
    turn: int
    messages: Sequence[Message]
    generation: Generation
    branch: int = 0
    trainable: bool = True
    reward: float | None = None
    team_reward: float | None = None
    committed: bool = True
    # Why the reply could not be read; None if it is well-formed.
    malformed: str | None = None
    # The acts of one conversation share a row, and have the same number.
    row: int = 0
    started: float = 0.0
    seconds: float = 0.0
    parses: list[str] = field(default_factory=list)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("reward", "team_reward"):
            check_reward(f"the {name} of agent {self.agent} in turn {self.turn}", value)
        super().__setattr__(name, value)

    @property
    def text(self) -> str:
        return self.generation.text

    @property
    def message(self) -> Message:
        return {"role": "assistant", "content": self.text}

    @property
    def truncated(self) -> bool:
        return self.generation.stop_reason == "length"

    def parse(self, codec: Codec[T]) -> T | Malformed:
        """The value in the text, or Malformed with its reason, which also marks the reply as malformed."""
        value = codec.parse(self.text)
        self.parses.append(repr(value))
        if isinstance(value, Malformed):
            self.mark_malformed(value.reason)
        return value

    def mark_malformed(self, reason: str) -> None:
        """For a format rule of the workflow; `format_penalty` applies."""
        self.malformed = reason

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Reply of {self.agent}, turn {self.turn}: {self.text!r:.60}>"
