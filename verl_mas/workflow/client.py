"""The interface between a workflow and what serves its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

Message = dict[str, Any]
# DatasetFields of a dataset row.
DatasetFields: TypeAlias = Mapping[str, Any]
# Settings by the names of an engine, an endpoint or a chat template.
Settings: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Generation:
    """What a policy generated. The token fields are empty when a remote endpoint served it.

    In a conversation the ids are those of the whole row so far; `text` and `sampled` are of this act alone.
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
    """The state of a conversation: its tokens so far, how many messages they hold, and its open row.

    `row` None: the next act starts a row whose prompt is the conversation so far.
    """

    generation: Generation
    known: int
    row: int | None = None


@dataclass(frozen=True)
class Request:
    """One act, as a policy gets it; `messages` are the whole conversation with the system prompt."""

    agent: str
    session: str
    turn: int
    messages: Sequence[Message]
    sampling: Settings = field(default_factory=dict)
    validate: bool = False
    greedy: bool = False
    chat_template_kwargs: Settings = field(default_factory=dict)
    tools: Sequence[str] = ()
    max_prompt_length: int | None = None
    truncation: str = "error"
    # How many messages at the front are the system prompt and the task, which truncation keeps.
    opening: int = 0
    # The conversation that this act continues.
    continues: Continuation | None = None
    # For tools and reward functions that need the dataset row.
    fields: DatasetFields = field(default_factory=dict)


class LLMClient(Protocol):
    """Serves one policy with one async method, `generate`."""

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        """`n` replies to one prompt. Cancelling the call cancels every request."""
        ...
