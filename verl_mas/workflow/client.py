"""The interface between a workflow and the clients that serve its policies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from verl_mas.util.text import all_encodable, encodable
from verl_mas.workflow.codecs import JsonObject

Message = JsonObject
DatasetFields: TypeAlias = Mapping[str, Any]
MOST_LEVELS = 64  # limit of the nesting of a call's arguments
Settings: TypeAlias = Mapping[str, Any]  # settings with the names that an engine, endpoint or chat template uses


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool as a model wrote it, with its outcome: `result` or `error` is the text that the model got.

    Both are None if the workflow must answer the call. If a limit excluded the call (`left_out`), no message
    contains the call, and its `error` gives the reason.
    """

    name: str
    arguments: str  # the text of the model, which may not be valid JSON
    id: str | None = None  # the id that the model or the endpoint gave the call
    result: str | None = None
    error: str | None = None
    reward: float | None = None
    seconds: float = 0.0
    left_out: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", encodable(self.name))
        object.__setattr__(self, "arguments", encodable(self.arguments))

    @property
    def parameters(self) -> JsonObject | None:
        """The arguments; None if they are not a JSON object, or if they are too deeply nested to be serialized."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) and not _deeper(value, MOST_LEVELS) else None

    def answered(self, content: object) -> Message:
        """Make the message with the result of the call, for a workflow that answers calls itself."""
        return {"role": "tool", "content": content, **({} if self.id is None else {"tool_call_id": self.id})}


def _deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(part, levels - 1) for part in inner)


@dataclass(frozen=True)
class Generation:
    """A reply that a policy generated. The token fields are empty if a remote endpoint served the request.

    In a conversation, the ids cover the whole row so far, but `text`, `sampled`, and the fields from `versions` on
    belong to this act alone. `text` does not include the calls in `tool_calls`.
    """

    text: str
    stop_reason: str | None = None
    prompt_ids: Sequence[int] = field(default=(), repr=False)
    response_ids: Sequence[int] = field(default=(), repr=False)
    response_mask: Sequence[int] = field(default=(), repr=False)
    log_probs: Sequence[float] | None = field(default=None, repr=False)
    sampled: int = 0
    prompt_tokens: int = 0  # count that an endpoint reports; without an endpoint, `prompt_ids` are counted
    temperature: float | None = None
    tool_calls: Sequence[ToolCall] = ()
    # The message as the endpoint sent it, if the endpoint requires the unchanged message in later requests.
    message: Message | None = field(default=None, repr=False)
    # True if the row has no room for another message, so that it cannot be continued.
    full: bool = field(default=False, repr=False)
    # In asynchronous modes, `versions` has pairs of a number of tokens and the version of the weights that sampled
    # them, in order, and `aborts` counts how often an update of the weights interrupted the act.
    versions: Sequence[Sequence[int]] = field(default=(), repr=False)
    aborts: int = 0
    forged_tokens: int = 0  # number of special tokens in texts of the prompt that were changed into ordinary text

    @property
    def has_tokens(self) -> bool:
        return len(self.response_ids) > 0


def message_of(generation: Generation, calls: Sequence[ToolCall] = ()) -> Message:
    """Convert a generation to a chat message. `calls` are the tool calls that the message keeps."""
    message = dict(generation.message or {"role": "assistant", "content": generation.text})
    if not calls:
        message.pop("tool_calls", None)
        return {**message, "content": message.get("content") or ""}
    given = message.get("tool_calls")
    return {**message, "tool_calls": given[: len(calls)] if given else [as_call(call) for call in calls]}


def as_call(call: ToolCall) -> JsonObject:
    """Convert a call to verl's form for chat templates. Arguments that are not a JSON object are passed
    on as the model wrote them."""
    parameters = call.parameters
    function = {"name": call.name, "arguments": call.arguments if parameters is None else all_encodable(parameters)}
    return {"type": "function", "function": function, **({} if call.id is None else {"id": call.id})}


@dataclass(frozen=True)
class Continuation:
    """The state of a conversation: its tokens so far (`generation`), the number of messages in these tokens (`known`),
    and its open row.

    If `row` is None, the next act starts a new row, with the tokens of the conversation as its prompt.
    """

    generation: Generation
    known: int
    row: int | None = None


@dataclass(frozen=True)
class Request:
    """Input of a policy for one generation of an act; `messages` are the whole conversation with the system prompt."""

    agent: str
    session: str
    turn: int  # index of the act among the acts of this instance of the agent
    messages: Sequence[Message]
    sampling: Settings = field(default_factory=dict)
    validate: bool = False
    greedy: bool = False
    chat_template_kwargs: Settings = field(default_factory=dict)
    tools: Sequence[JsonObject] = ()  # OpenAI schemas of the tools that the policy may call
    max_prompt_length: int | None = None
    truncation: str = "error"
    opening: int = 0  # number of first messages (system prompt and task) that truncation keeps
    continues: Continuation | None = None  # the conversation that this act continues
    instance: int = 0  # the number of the spawned agent or conversation; 0 for the agent itself
    # Name of the path through the session (`Line`), empty for the main path. Requests of different paths are
    # independent samples.
    line: str = ""
    branch: int = 0  # index of the first candidate
    round: int = 0  # number of earlier generations of this act that called tools
    fields: DatasetFields = field(default_factory=dict)  # the dataset row, for tools and reward functions that need it


class LLMClient(Protocol):
    """Serves one policy with one async method, `generate`."""

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        """Return `n` replies to one prompt, with their tool calls. The session makes these calls, and then generates
        again with the results. Cancelling this method cancels every request."""
        ...
