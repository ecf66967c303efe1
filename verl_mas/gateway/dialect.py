"""Common parts of the HTTP protocols by which programs ask agents: a parsed request, and the act that answers it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jsonschema import validators
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry as References
from referencing.exceptions import Unresolvable

from verl_mas.config.registry import Registry
from verl_mas.config.values import Hint, describe, problems
from verl_mas.gateway.streaming import Usage
from verl_mas.util.text import all_encodable
from verl_mas.workflow.client import Message, ToolCall, as_call
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.tools import Tool

_REQUIRED = object()
IMAGES = ("image_url", "input_image", "image")  # types of image parts in Chat Completions, Responses and Messages
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Sampling settings that have the same names in OpenAI's protocol and in `Sampling`.
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", *PENALTIES)


class ApiError(Exception):
    """An HTTP error with OpenAI's error body. `unsupported` is a code that tells Anthropic's clients to send the
    request in another form. An error with this code is not a fault of the session."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, unsupported: str = ""
    ):
        super().__init__(message)
        self.status, self.param, self.code, self.unsupported = status, param, code, unsupported

    @property
    def body(self) -> JsonObject:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        details = {"details": {"error_code": self.unsupported}} if self.unsupported else {}
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code, **details}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that tell the clients of OpenAI and Anthropic whether to retry. Without these headers, clients decide
        by the HTTP status."""
        retry = self.status == 429
        return {"x-should-retry": "true" if retry else "false", **({"retry-after": "1"} if retry else {})}


@dataclass
class Fields:
    """The fields of a request body. A dialect takes each field that it supports; fields that remain in `left` have no
    effect. `items` maps ids to the output items of earlier replies, because a request may send an item's id instead of
    the item."""

    left: JsonObject
    items: Mapping[str, JsonObject] = field(default_factory=dict)

    @classmethod
    def of(cls, body: bytes, items: Mapping[str, JsonObject] | None = None) -> Fields:
        try:
            given = json.loads(body.decode())
            # Transcripts are long, so strings are searched for lone surrogates only if the body may contain some.
            given = all_encodable(given) if SURROGATE.search(body) else given
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise ApiError(400, "the body is not a JSON object")
        # Clients write null for fields that they do not set.
        return cls({name: value for name, value in given.items() if value is not None}, items or {})

    def take(self, name: str, kind: Hint, default: object = _REQUIRED) -> Any:
        """Take the value of a field. Raises ApiError if the value has another type, or if the field is missing and has
        no default."""
        value = self.left.pop(name, default)
        if value is _REQUIRED or (value is not default and problems(kind, value, name)):
            given = "is missing" if value is _REQUIRED else f"is {value!r:.80}"
            raise ApiError(400, f"{name} {given}; it is {describe(kind)}", param=name)
        return value

    def take_limit(self, *names: str) -> int | None:
        """Take several limits and return the smallest; None if there is no limit. Some clients write -1 for no
        limit."""
        limits = [self.take(name, int, None) for name in names]
        return min((limit for limit in limits if limit not in (None, -1)), default=None)

    def refuse(self, fields: Mapping[str, str]) -> None:
        """Raise ApiError if a request has one of `fields`, which are unsupported and cannot be ignored, or asks for
        several replies. `fields` maps each field to the alternative that the error names."""
        for name, instead in fields.items():
            if self.left.get(name):
                raise ApiError(400, f"{name} is not supported: {instead}", param=name)
        if (n := self.take("n", int, 1)) != 1:
            raise ApiError(400, f"n={n}: a request is one act; send {n} requests, each is a sample", param="n")


@dataclass(frozen=True)
class Asked:
    """A request of a program for one reply."""

    model: str
    messages: Sequence[Message]
    agent: str = ""  # the agent in the URL, which overrides the model
    instructions: str = ""  # a system prompt that comes with each request and is not part of the transcript
    after: str | None = None  # the id of the reply that comes before the messages
    tools: Sequence[JsonObject] = ()
    namespaces: Mapping[str, str] = field(default_factory=dict)  # maps the full name of a tool to its namespace
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    schema: JsonObject | None = None  # JSON schema of the reply
    unused: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """An act in the form that a program gets. `stopped_by` is the stop string of the request at which the reply ended;
    `text` does not contain it."""

    id: str
    reply: Reply
    text: str
    calls: Sequence[ToolCall] = ()
    stopped_by: str | None = None

    @property
    def usage(self) -> Usage:
        usage = Usage()
        usage.add(self.reply.generation)
        return usage

    @property
    def message(self) -> Message:
        calls = {"tool_calls": [as_call(call) for call in self.calls]} if self.calls else {}
        return {"role": "assistant", "content": self.text, **calls}


class Dialect(Protocol):
    """An HTTP protocol of programs: the path of its requests, and methods that parse requests and format acts."""

    @property
    def path(self) -> str: ...

    def read(self, body: Fields) -> Asked:
        """Parse a request. Raises ApiError."""

    def whole(self, asked: Asked, served: Served) -> JsonObject: ...

    def events(self, asked: Asked, served: Served) -> Iterator[str]:
        """Format the act as a stream of server-sent events."""


DIALECTS: Registry[Dialect] = Registry("dialect", package="verl_mas.gateway.dialects")


def event(data: object, name: str | None = None) -> str:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data, default=str)}\n\n"


def text_of_parts(content: object, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """Return the text of a message's content, which may be a list of text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ApiError(400, f"{where} is neither text nor a list of texts", param=where)
    other = [str(part.get("type")) for part in content if part.get("type") not in kinds]
    if other:
        raise ApiError(400, f"{where} has {other[0]}; agents are asked in text", param=where)
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


def content_of(role: str, content: object, where: str, kinds: Sequence[str] = ("text",)) -> str | list[Message]:
    """Return the content of a message in the form of Chat Completions: a string or, for a user message with images, a
    list of parts."""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if role != "user" or not any(part.get("type") in IMAGES for part in parts):
        return text_of_parts(content, where, kinds)
    return [_part(part, where, kinds) for part in parts]


def _part(part: Message, where: str, kinds: Sequence[str]) -> Message:
    if part.get("type") not in IMAGES:
        return {"type": "text", "text": text_of_parts([part], where, kinds)}
    url = part.get("image_url") or part.get("source")
    if isinstance(url, dict) and url.get("type") == "base64":
        url = f"data:{url.get('media_type')};base64,{url.get('data')}"
    url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str) or not url.startswith("data:"):
        message = f"{where} has the image {str(url)[:60]!r}; nothing is downloaded: send data:image/png;base64,..."
        raise ApiError(400, message, param=where)
    return {"type": "image_url", "image_url": {"url": url}}


def tool(name: object, description: object, parameters: object) -> JsonObject:
    """Return the schema of a tool in OpenAI's form, which chat templates take."""
    described = {} if description is None else {"description": description}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters or {}}}


def checked_tools(schemas: Sequence[JsonObject]) -> Sequence[Tool]:
    try:
        return [Tool(schema) for schema in schemas]
    except ValueError as error:
        raise ApiError(400, str(error), param="tools") from error


def with_schema(messages: Sequence[Message], schema: object) -> list[Message]:
    """Return the messages with the schema of the reply in the system prompt. The engine samples without a grammar,
    because the trainer computes log-probs without a grammar, and the difference would bias training
    (benchmarks/typed_output.py measures this bias)."""
    if not schema:
        return list(messages)
    text = f"Reply with one JSON value of this schema, and nothing else:\n{json.dumps(schema)}"
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def misfit(text: str, schema: JsonObject) -> str:
    """Return why a reply does not fit its schema; empty if it fits. The whole text must be JSON, because clients parse
    the whole text. Raises ApiError for an invalid schema."""
    try:
        kind = validators.validator_for(schema)
        kind.check_schema(schema)
        # Use an empty registry, because the default registry would download schemas to which this schema refers.
        error = best_match(kind(schema, registry=References()).iter_errors(json.loads(text)))
    except (SchemaError, Unresolvable, TypeError) as wrong:
        raise ApiError(400, f"the JSON schema of the reply is not valid: {wrong!s:.200}") from wrong
    except (ValueError, RecursionError, ArithmeticError) as wrong:
        return f"not JSON: {wrong}"
    return "" if error is None else f"{error.json_path}: {error.message:.200}"
