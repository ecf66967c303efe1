"""Parses requests to a served team, in OpenAI's protocol. Unsupported fields are refused with a reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from verl_mas.config.registry import nearest
from verl_mas.config.values import load_dataclass
from verl_mas.errors import ConfigError
from verl_mas.gateway.dialect import SAMPLING as SETTINGS
from verl_mas.gateway.dialect import ApiError, Fields
from verl_mas.gateway.dialects.chat import read_messages
from verl_mas.workflow.client import Message

# Sampling settings that a request to a team may have. Other settings could break the formats in which agents reply.
TEAM = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
# Name of a sampling setting in OpenAI's protocol -> its name in verl-mas.
SAMPLING = {name: name for name in (*SETTINGS, "stop", "max_tokens")} | {"max_completion_tokens": "max_tokens"}
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")  # without effect
# Values of unsupported fields that mean the same as a missing field, so they are accepted.
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


@dataclass
class Extension:
    """The field `verl_mas` of a request."""

    transcript: bool = False  # whether the response includes all acts of the session
    ground_truth: object = None  # given to the workflow, which can then score the session
    # Fields of a dataset row that the workflow reads, such as a board.
    extra_info: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatRequest:
    model: str
    policy: str | None  # the policy to request without the team; None for the team
    messages: list[Message]
    sampling: Mapping[str, object]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    extension: Extension = field(default_factory=Extension)


def read_request(body: bytes, team: str, policies: list[str]) -> ChatRequest:
    """Read a request to the team, or to `team/policy`. Raises ApiError."""
    fields = Fields.of(body)
    given = fields.left
    model, known = given.pop("model", None), [team, *(f"{team}/{name}" for name in policies)]
    if model is None:
        raise ApiError(400, f"no model; it is one of {', '.join(known)}", param="model")
    if model not in known:
        raise ApiError(404, f"no model {model!r}: {nearest(str(model), known)}", param="model", code="model_not_found")
    alone = str(model).removeprefix(team).removeprefix("/") or None
    messages = read_messages(fields.take("messages", list, []))
    if not any(message["role"] == "user" for message in messages):
        raise ApiError(400, "no message of role user, which would have the question", param="messages")
    stream, options = fields.take("stream", bool, False), fields.take("stream_options", dict, {})
    try:
        extension = load_dataclass(Extension, given.pop(OURS, {}), OURS)
    except ConfigError as error:
        raise ApiError(400, str(error), param=OURS) from error
    n = fields.take("n", int, 1)
    if not 1 <= n <= (128 if alone else 1):
        raise ApiError(400, f"n={n!r}: a team gives one answer, and a policy 1 to 128", param="n")
    sampling = dict(_sampling(given, None if alone else TEAM, team))
    with_usage = bool(options.get("include_usage"))
    return ChatRequest(str(model), alone, messages, sampling, n, stream, with_usage, extension)


def _sampling(given: Mapping[str, object], allowed: tuple[str, ...] | None, team: str) -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        if name in IGNORED or value in NEUTRAL.get(name, ()):
            continue
        ours = SAMPLING.get(name)
        if ours is None:
            raise ApiError(400, f"{name} is not supported", param=name)
        if allowed is None or ours in allowed:
            yield ours, value
        elif value not in (0, 1, [], ""):
            known = ", ".join(allowed)
            raise ApiError(400, f"{name} is for one policy, as model {team}/POLICY; a team takes {known}", param=name)
