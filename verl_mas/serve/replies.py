"""Replies of a served team, in OpenAI's protocol."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_mas.endpoints.openai import OpenAIClient
from verl_mas.errors import EngineLost, FaultKind, InvalidInput, SessionFault
from verl_mas.run_folder.records import plain
from verl_mas.serve.requests import OURS, ApiError, ChatRequest
from verl_mas.serve.runtime import EndedSession, Runtime
from verl_mas.workflow.client import Generation
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.session import Session
from verl_mas.workflow.streaming import ActText, Usage

TIMED_OUT = (FaultKind.TIMEOUT, FaultKind.SESSION_TIMEOUT)
# What a transcript has of each act.
OF_ACTS = ("agent", "instance", "turn", "branch", "committed", "policy", "text", "malformed")


@dataclass(frozen=True)
class CompletionChoice:
    text: str
    truncated: bool

    @property
    def finish_reason(self) -> str:
        return "length" if self.truncated else "stop"


@dataclass(frozen=True)
class Answers:
    """All choices, and what they took."""

    answers: Sequence[CompletionChoice]
    usage: Usage
    ours: JsonObject | None = None

    @classmethod
    def of_session(cls, ended: EndedSession, request: ChatRequest) -> Answers:
        """Raises the fault of a session that failed."""
        if ended.result.failed:
            raise ended.result.faults[-1]
        session = ended.result.session
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
    """A workflow may end without an answer, as games do: then it is the last reply."""
    answer = session.outcome.answer if session.outcome else None
    last = next((reply for reply in reversed(session.replies) if reply.committed), None)
    reply = answer if isinstance(answer, Reply) else last if answer is None else None
    text = str(answer) if answer is not None else last.text if last else ""
    return CompletionChoice(text, reply is not None and reply.truncated)


def transcript(session: Session) -> JsonObject:
    """Every act, and the reward where the request had what it is computed from."""
    acts = [{name: getattr(reply, name) for name in OF_ACTS} for reply in session.replies]
    # What JSON has not, such as NaN, is text; numbers of numpy are numbers.
    info = json.loads(json.dumps(session.info, default=plain), parse_constant=str)
    return {"acts": acts, "reward": session.team_reward, "info": info, "seconds": round(session.seconds, 3)}


@dataclass
class ReplyWriter:
    request: ChatRequest
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, found: Answers) -> JsonObject:
        choices = []
        for number, answer in enumerate(found.answers):
            message, reason = {"role": "assistant", "content": answer.text}, answer.finish_reason
            choices.append({"index": number, "message": message, "logprobs": None, "finish_reason": reason})
        return {**self._head("chat.completion"), "choices": choices, "usage": _usage(found.usage), **(found.ours or {})}

    def piece(self, delta: JsonObject, *, index: int = 0, finish_reason: str | None = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._event({"choices": [choice]})

    def act(self, event: ActText) -> str:
        """Text of any agent, for requests that ask for the transcript. The answer does not have it."""
        found = {"agent": event.agent, "act": event.act, "text": event.text, "last": event.last}
        return self._event({"choices": [], OURS: found})

    def end(self, found: Answers) -> str:
        usage = {"usage": _usage(found.usage)} if self.request.include_usage else {}
        last = self._event({"choices": [], **usage, **(found.ours or {})}) if usage or found.ours else ""
        return f"{last}data: [DONE]\n\n"

    def failed(self, problem: ApiError) -> str:
        return f"data: {json.dumps(problem.body)}\n\n"

    def _event(self, fields: JsonObject) -> str:
        return f"data: {json.dumps({**self._head('chat.completion.chunk'), **fields}, default=str)}\n\n"

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}


def _usage(usage: Usage) -> JsonObject:
    total = usage.prompt + usage.completion
    return {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "total_tokens": total}


def refusal(error: Exception, runtime: Runtime) -> ApiError | None:
    """The HTTP error of what a session raises; None for an error of ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineLost):
        return ApiError(503, "an engine is lost; the log of the server says why", code="engine_lost")
    if isinstance(error, InvalidInput):
        return ApiError(400, str(error))
    if not isinstance(error, SessionFault):
        return None
    member = runtime.members.get(error.agent or "")
    at = runtime.clients.get(member.spec.policy) if member else None
    message, remote = str(error), isinstance(at, OpenAIClient)
    if member is not None and isinstance(at, OpenAIClient):
        message = f"policy {member.spec.policy} at {at.base_url}: {error}"
    if error.kind in TIMED_OUT:
        return ApiError(504, message, code=error.kind.value)
    if error.kind is FaultKind.REFUSED and remote:
        return ApiError(502, message, code="endpoint")
    # The engine of this process refuses what does not fit it.
    given = error.kind is FaultKind.LIMIT or isinstance(error.__cause__, InvalidInput)
    return ApiError(400 if given else 500, message, code=error.kind.value)
