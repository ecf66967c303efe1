"""Requests to a served team, in OpenAI's protocol: what is read, what is refused, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from verl_mas.config.values import load_dataclass, problems
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest
from verl_mas.util.text import all_encodable
from verl_mas.workflow.client import Message
from verl_mas.workflow.codecs import JsonObject

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# What a team takes: its agents have formats, which the others could break.
TEAM = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
# OpenAI's name -> ours.
SAMPLING = {name: name for name in (*TEAM, "stop", "presence_penalty", "frequency_penalty", "repetition_penalty")}
SAMPLING["max_completion_tokens"] = "max_tokens"
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")  # Of no effect
# What is not supported may be given with the value that means its absence.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
OURS = "verl_mas"


class ApiError(Exception):
    """An HTTP error with OpenAI's body."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> JsonObject:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass
class Extension:
    """The field `verl_mas` of a request."""

    transcript: bool = False  # The reply has every act of the session
    ground_truth: object = None  # With it the session is scored by the workflow, where that scores itself
    # What the workflow reads of a row of the dataset, such as a board.
    extra_info: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatRequest:
    model: str
    policy: str | None  # that is asked alone, not the team
    messages: list[Message]
    sampling: Mapping[str, object]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    extension: Extension = field(default_factory=Extension)


def read_request(body: bytes, team: str, policies: list[str]) -> ChatRequest:
    """A request to the team, or to `team/policy`. Raises ApiError."""
    try:
        given = all_encodable(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ApiError(400, "the body is not a JSON object")
    given = {name: value for name, value in given.items() if value is not None}
    model, known = given.pop("model", None), [team, *(f"{team}/{name}" for name in policies)]
    if model is None:
        raise ApiError(400, f"no model; it is one of {', '.join(known)}", param="model")
    if model not in known:
        raise ApiError(404, f"no model {model!r}: {nearest(str(model), known)}", param="model", code="model_not_found")
    alone = str(model).removeprefix(team).removeprefix("/") or None
    asked = given.pop("messages", None)
    if not isinstance(asked, list) or not asked:
        raise ApiError(400, "no messages; they are a list of at least one", param="messages")
    messages = [_message(message, f"messages[{number}]") for number, message in enumerate(asked)]
    if not any(message["role"] == "user" for message in messages):
        raise ApiError(400, "no message of role user, which would have the question", param="messages")
    stream, options = given.pop("stream", False), given.pop("stream_options", {})
    if not isinstance(stream, bool) or not isinstance(options, dict):
        raise ApiError(400, "stream is true or false, and stream_options an object", param="stream")
    try:
        extension = load_dataclass(Extension, given.pop(OURS, {}), OURS)
    except ConfigError as error:
        raise ApiError(400, str(error), param=OURS) from error
    n = given.pop("n", 1)
    if problems(int, n, "n") or not 1 <= n <= (128 if alone else 1):
        raise ApiError(400, f"n={n!r}: a team gives one answer, and a policy 1 to 128", param="n")
    sampling = dict(_sampling(given, None if alone else TEAM, team))
    with_usage = bool(options.get("include_usage"))
    return ChatRequest(str(model), alone, messages, sampling, n, stream, with_usage, extension)


def _message(given: object, where: str) -> Message:
    if not isinstance(given, dict) or str(given.get("role")) not in ROLES:
        raise ApiError(400, f"{where} is not an object with a role of {', '.join(ROLES)}", param=where)
    content = given.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        other = [part.get("type") for part in content if part.get("type") != "text"]
        if other:
            raise ApiError(400, f"{where} has {other[0]}; a team is asked in text", param=where)
        content = "".join(str(part.get("text", "")) for part in content)
    if content is None and given["role"] == "assistant":
        content = ""
    if not isinstance(content, str):
        raise ApiError(400, f"{where}.content is neither text nor a list of texts", param=where)
    return {**given, "role": ROLES[given["role"]], "content": content}


def _sampling(given: Mapping[str, object], allowed: tuple[str, ...] | None, team: str) -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        if name in NEUTRAL and value in NEUTRAL[name]:
            continue
        if name in IGNORED:
            continue
        ours = SAMPLING.get(name)
        if ours is None:
            raise ApiError(400, f"{name} is not supported", param=name)
        if allowed is None or ours in allowed:
            yield ours, value
        elif value not in (0, 1, [], ""):
            known = ", ".join(allowed)
            raise ApiError(400, f"{name} is for one policy, as model {team}/POLICY; a team takes {known}", param=name)
