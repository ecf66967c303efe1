"""Tools: the schema and the function of a tool, the context that its calls get, and the results that it returns."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from verl_mas.errors import WorkflowError
from verl_mas.workflow.client import Continuation, DatasetFields, Message
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.reply import check_reward

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool that returns more than a value: also a `reward` for the act, or `images` for the model.

    `value` is a string, or anything that JSON can hold.
    """

    value: object = ""
    reward: float | None = None
    images: Sequence[object] = ()

    def __post_init__(self) -> None:
        check_reward("the reward of a tool", self.reward)


@dataclass
class CallContext:
    """Context of a tool call: the dataset row, the messages so far, and the state that tools keep within an act.

    Each candidate of a branch has its own context.
    """

    fields: DatasetFields = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)
    # State of the conversation up to the reply with the current calls. `Agent.branch_off` continues from it.
    continues: Continuation | None = None


# The function of a tool returns a value or a ToolResult. An exception that it raises becomes the result of the call.
CallTool: TypeAlias = Callable[[JsonObject, CallContext], Awaitable[object]]


@dataclass(frozen=True)
class Tool:
    """A tool with its OpenAI schema. Without `call`, the workflow answers its calls.

    The calls of one reply are made concurrently, except that calls of `in_order` tools are made one after another.
    `acts`: whether a call runs acts of agents. Acts have their own time limits, so `tool_timeout_s` does not apply.
    """

    schema: JsonObject
    call: CallTool | None = None
    in_order: bool = False
    acts: bool = False

    def __post_init__(self) -> None:
        function = self.schema.get("function")
        if self.schema.get("type") != "function" or not isinstance(function, dict) or not _is_object(function):
            value = f"the schema of a tool {self.schema!r:.200}"
            rule = "OpenAI's schema of a tool is {'type': 'function', 'function': {'name': ..., 'parameters': ...}}"
            raise WorkflowError(value, rule=rule, fix="write it in this form, or pass the function itself")
        if not isinstance(function.get("name"), str) or not NAME.fullmatch(function["name"]):
            value = f"a tool named {function.get('name')!r}"
            rule = "models and endpoints accept names of at most 64 letters, digits, '_' and '-'"
            raise WorkflowError(value, rule=rule, fix="give the function such a name, or write its schema")

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


def _is_object(function: JsonObject) -> bool:
    """Whether the parameters in a schema of a function are missing or a JSON object."""
    return isinstance(function.get("parameters") or {}, dict)


class ToolObject(Protocol):
    """A FunctionTool or BaseTool of verl."""

    @property
    def tool_schema(self) -> object: ...


# A function or bound method (with or without verl's decorator), a tool of verl, a Tool, or a bare schema.
ToolLike: TypeAlias = Tool | ToolObject | Callable[..., object] | JsonObject
# A list of tools, or a function that makes a new list for each candidate.
Tools: TypeAlias = Sequence[ToolLike] | Callable[[], Sequence[ToolLike]]
