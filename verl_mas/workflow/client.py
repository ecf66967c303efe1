"""The line between a workflow and whatever serves its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]


@dataclass(frozen=True)
class Generation:
    """What a policy generated. The token fields are empty when a remote endpoint served it.

    In a conversation the ids are those of the whole row so far; `text` and `sampled` are this act's alone.
    """

    text: str
    stop_reason: str | None = None
    prompt_ids: Sequence[int] = field(default=(), repr=False)
    response_ids: Sequence[int] = field(default=(), repr=False)
    response_mask: Sequence[int] = field(default=(), repr=False)
    log_probs: Sequence[float] | None = field(default=None, repr=False)
    sampled: int = 0
    temperature: float | None = None

    @property
    def has_tokens(self) -> bool:
        return len(self.response_ids) > 0


@dataclass(frozen=True)
class Continuation:
    """Where a conversation is: the tokens so far, how many of its messages are in them, and its open row.

    `row` None: the next act starts a row, and what came before is its prompt.
    """

    generation: Generation
    known: int
    row: int | None = None


@dataclass(frozen=True)
class Request:
    """What an act asks of a policy; `messages` are the whole conversation, system prompt included."""

    agent: str
    session: str
    turn: int
    messages: Sequence[Message]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    validate: bool = False
    greedy: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[str] = ()
    max_prompt_length: int | None = None
    truncation: str = "error"
    # How many messages at the front are the system prompt and the task itself, which truncation leaves alone.
    opening: int = 0
    # Where the conversation is that this act continues.
    continues: Continuation | None = None
    # The dataset row, for tools and reward functions that need it.
    fields: Mapping[str, Any] = field(default_factory=dict)


class LLMClient(Protocol):
    """Serves one policy, by one async method, `generate`."""

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        """`n` answers to one prompt. Cancelling the call leaves no request behind."""
        ...
