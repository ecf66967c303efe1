"""Requests to a served team, and its replies, in OpenAI's protocol. Unsupported fields are refused with a reason."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from verl_mas.config.registry import nearest
from verl_mas.config.values import load_dataclass
from verl_mas.errors import ConfigError, EngineLost, FaultKind, InvalidInput, SessionFault
from verl_mas.gateway.dialect import SAMPLING as SETTINGS
from verl_mas.gateway.dialect import ApiError, Fields
from verl_mas.gateway.dialects.chat import DONE, ChatWriter, chosen, read_messages, usage_of
from verl_mas.gateway.endpoints.openai import OpenAIClient
from verl_mas.gateway.streaming import ActText, Usage
from verl_mas.results.serve.runtime import EndedSession, Runtime
from verl_mas.run_folder.records import plain
from verl_mas.workflow.client import Generation, Message
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.run import finished
from verl_mas.workflow.session import Session

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
TIMED_OUT = (FaultKind.TIMEOUT, FaultKind.SESSION_TIMEOUT)
# Fields of each act in a transcript.
OF_ACTS = ("agent", "instance", "turn", "branch", "committed", "policy", "text", "malformed")


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


@dataclass(frozen=True)
class CompletionChoice:
    text: str
    truncated: bool

    @property
    def finish_reason(self) -> str:
        return "length" if self.truncated else "stop"


@dataclass(frozen=True)
class Answers:
    """All choices of a reply, and their token usage. `ours` has the transcript if the request asks for it."""

    answers: Sequence[CompletionChoice]
    usage: Usage
    ours: JsonObject | None = None

    @classmethod
    def of_session(cls, ended: EndedSession, request: ChatRequest) -> Answers:
        """Make the answer of a session. Raises the fault of a failed session."""
        session = finished(ended.result)
        ours = {OURS: transcript(session)} if request.extension.transcript else None
        return cls([answer_of(session)], ended.usage, ours)

    @classmethod
    def of_policy(cls, generations: Sequence[Generation]) -> Answers:
        usage, choices = Usage(), []
        for generation in generations:
            usage.add(generation)
            choices.append(CompletionChoice(generation.text, generation.stop_reason == "length"))
        return cls(choices, usage)


def answer_of(session: Session) -> CompletionChoice:
    """Return the answer of a session. Some workflows, such as games, end without an answer; then the last committed
    reply is the answer."""
    answer = session.outcome.answer if session.outcome else None
    last = next((reply for reply in reversed(session.replies) if reply.committed), None)
    reply = answer if isinstance(answer, Reply) else last if answer is None else None
    text = str(answer) if answer is not None else last.text if last else ""
    return CompletionChoice(text, reply is not None and reply.truncated)


def transcript(session: Session) -> JsonObject:
    """List every act, and the reward. The reward is meaningful only if the request had the data from which it is
    computed."""
    acts = [{name: getattr(reply, name) for name in OF_ACTS} for reply in session.replies]
    # Values that JSON lacks, such as NaN, become strings; numpy scalars become plain numbers.
    info = json.loads(json.dumps(session.info, default=plain), parse_constant=str)
    return {"acts": acts, "reward": session.team_reward, "info": info, "seconds": round(session.seconds, 3)}


class ReplyWriter(ChatWriter):
    def __init__(self, request: ChatRequest):
        super().__init__(request.model, f"chatcmpl-{uuid.uuid4().hex}")
        self.request = request

    def whole(self, found: Answers) -> JsonObject:
        messages = [{"role": "assistant", "content": answer.text} for answer in found.answers]
        answered = enumerate(zip(messages, found.answers, strict=True))
        choices = [chosen(message, answer.finish_reason, number) for number, (message, answer) in answered]
        return self.completion(choices, found.usage, found.ours)

    def act(self, text: ActText) -> str:
        """Format new text of any agent, for requests that ask for the transcript. The answer is sent separately."""
        found = {"agent": text.agent, "act": text.act, "text": text.text, "last": text.last}
        return self.chunk({"choices": [], OURS: found})

    def end(self, found: Answers) -> str:
        usage = {"usage": usage_of(found.usage)} if self.request.include_usage else {}
        last = self.chunk({"choices": [], **usage, **(found.ours or {})}) if usage or found.ours else ""
        return f"{last}{DONE}"


def refusal(error: EngineLost | InvalidInput | SessionFault, runtime: Runtime) -> ApiError:
    """Return the HTTP error for a failed session."""
    if isinstance(error, EngineLost):
        return ApiError(503, "an engine is lost; the log of the server says why", code="engine_lost")
    if isinstance(error, InvalidInput):
        return ApiError(400, str(error))
    agent = runtime.agents.get(error.agent or "")
    at = runtime.clients.get(agent.spec.policy) if agent else None
    message, remote = str(error), isinstance(at, OpenAIClient)
    if agent is not None and isinstance(at, OpenAIClient):
        message = f"policy {agent.spec.policy} at {at.base_url}: {error}"
    if error.kind in TIMED_OUT:
        return ApiError(504, message, code=error.kind.value)
    if error.kind is FaultKind.REFUSED and remote:
        return ApiError(502, message, code="endpoint")
    # A request that exceeds the limits of the engine of this process is an error of the client.
    given = error.kind is FaultKind.LIMIT or isinstance(error.__cause__, InvalidInput)
    return ApiError(400 if given else 500, message, code=error.kind.value)
