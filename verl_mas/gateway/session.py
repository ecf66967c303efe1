"""The server's side of a session of a program. Each new request is an act of an agent. A repeated request is not a new
act, and gets the reply of the earlier act."""

import asyncio
import contextvars
import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Annotated, Literal

from verl_mas.config.registry import nearest
from verl_mas.config.sampling import Sampling
from verl_mas.config.values import Count, NotNegative, Range, load_dataclass
from verl_mas.errors import ConfigError, EngineLost, FaultKind, SessionFault
from verl_mas.gateway.dialect import SAMPLING, ApiError, Asked, Served, checked_tools, misfit
from verl_mas.gateway.tips import Found, Tip, Tips, canonical, remove, spellings
from verl_mas.workflow.client import Message, message_of
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.team import Team

logger = logging.getLogger(__name__)
# Pairs of an agent and a request's sampling setting for which this process has logged a warning.
_NAMED: set[tuple[str, str]] = set()


@dataclass(kw_only=True)
class Rules:
    """Rules by which requests become acts."""

    models: dict[str, str] = field(default_factory=dict)
    """Maps names of models to agents: `{gpt-5-mini: solver}`. `*` stands for every other name; on a command line, it is
    `{*:solver}`."""

    thinking: Literal["keep", "drop"] = "keep"
    """How requests are handled if a program removes the thought of a reply from its history. keep: later turns still
    see the thought, in the same row. drop: later turns start a new row without the thought."""

    typed: dict[str, Annotated[int, Range(2, 64)]] = field(default_factory=dict)
    """Maximum number of attempts of an agent at a reply that fits the JSON schema of its request: `{solver: 4}`.
    Attempts that do not fit are malformed acts."""

    tolerate: list[Literal["timeout", "refused", "limit", "workflow"]] = field(default_factory=list)
    """Faults that the program may handle. Any other fault fails the session, whatever the program returns."""

    grace_s: NotNegative = 10.0
    """Seconds in which a client that has disconnected may send its request again, before the act is cancelled."""

    in_flight: Count = 64
    """Maximum number of concurrent requests of a session. Further requests get the status 429, which asks their
    clients to retry."""


@dataclass(eq=False)
class Exchange:
    """An act, and the connections that wait for its reply."""

    digest: bytes  # hash of the request that started the act
    act: asyncio.Future[Served]
    readers: int = 0
    delivered: bool = False

    @property
    def lost(self) -> bool:
        """Whether no client waits for the reply, and no client has received it."""
        return not self.readers and not self.delivered

    @property
    def reply(self) -> Reply | None:
        """The reply of the act; None while the act runs, or if it failed."""
        ended = self.act.done() and not self.act.cancelled() and self.act.exception() is None
        return self.act.result().reply if ended else None


class GatewaySession:
    """One attempt at a task. Requests carry its `key`. The first fault ends the session, unless it is tolerated."""

    def __init__(self, team: Team, agents: Sequence[str], rules: Rules):
        self.key = secrets.token_urlsafe(16)
        self.over = False
        self.fault: SessionFault | EngineLost | None = None
        self.reached, self.decided = asyncio.Event(), asyncio.Event()
        self.items: dict[str, JsonObject] = {}  # output items that were served, by id
        self.agents, self._team, self._rules, self._tips = agents, team, rules, Tips()
        self._exchanges: list[Exchange] = []
        self._refused: Counter[bytes] = Counter()  # hashes of requests that got a 429: their retries are new requests
        self._transcripts: dict[str, Sequence[Message]] = {}  # transcripts by the id of their last reply
        self._tip_of: dict[Reply, Tip] = {}
        self._named, self._acts, self._calls, self._call_ids = secrets.token_hex(6), count(), count(), set[str]()
        # Acts run in this context, because it has the session's clocks, which the context of a connection lacks.
        self._context = contextvars.copy_context()

    @contextmanager
    def exchange(self, asked: Asked, digest: bytes, *, again: bool = False) -> Iterator[Exchange]:
        """Yield the exchange of a request: a new exchange or, for a repeated request, an earlier exchange. The context
        lasts until the connection has sent the reply. `digest` is the hash of the request, and `again` tells whether
        the client marked the request as a retry."""
        found = self._repeated(digest, again=again) or self._begun(asked, digest)
        found.readers += 1
        try:
            yield found
        finally:
            found.readers -= 1
            if found.lost:
                asyncio.get_running_loop().call_later(self._rules.grace_s, self._forget, found)

    def decide(self, error: SessionFault | EngineLost | ApiError) -> None:
        """Let a fault end the session, unless it is tolerated. The first fault counts, even if the program handles the
        error. A request that cannot be parsed is a fault, too, because a program that ignores the error would otherwise
        finish normally without an act."""
        fault = SessionFault(FaultKind.WORKFLOW, str(error)) if isinstance(error, ApiError) else error
        tolerated = isinstance(fault, SessionFault) and fault.kind.value in self._rules.tolerate
        if self.fault is None and not tolerated:
            self.fault = fault
            self.decided.set()

    async def close(self) -> None:
        """Answer no further requests, and cancel running ones."""
        self.over = True
        for each in self._exchanges:
            each.act.cancel()
        await asyncio.gather(*(each.act for each in self._exchanges), return_exceptions=True)
        for each in list(self._exchanges):
            self._forget(each)

    def _repeated(self, digest: bytes, *, again: bool) -> Exchange | None:
        """Find the exchange of an earlier, equal request that this request repeats. A request repeats an earlier one if
        the earlier client disconnected before it had the reply, or if the request is marked as a retry."""
        if again and self._refused[digest]:
            self._refused[digest] -= 1
            return None
        same = [each for each in self._exchanges if each.digest == digest and (each.reply or not each.act.done())]
        return next((each for each in same if each.lost), same[-1] if again and same else None)

    def _begun(self, asked: Asked, digest: bytes) -> Exchange:
        if self.over:
            raise ApiError(401, "the session is over", code="session_over")
        running = sum(not each.act.done() for each in self._exchanges)
        if running >= self._rules.in_flight:
            self._refused[digest] += 1
            raise ApiError(429, f"{running} requests of the session are running, which is the limit", code="busy")
        self._exchanges.append(Exchange(digest, self._context.run(asyncio.ensure_future, self._guarded(asked))))
        return self._exchanges[-1]

    async def _guarded(self, asked: Asked) -> Served:
        try:
            return await self._act(asked)
        except (SessionFault, EngineLost, ApiError) as error:
            self.decide(error)
            raise

    async def _act(self, asked: Asked) -> Served:
        agent, messages = self.agent_of(asked.model, asked.agent), self._transcript(asked)
        given, tools = [canonical(message) for message in messages], json.dumps(asked.tools, sort_keys=True)
        settings: JsonObject = {"tools": checked_tools(asked.tools), **self._settings(agent, asked)}
        attempts = self._rules.typed.get(agent, 1) if asked.schema else 1
        for number in range(1, attempts + 1):
            found = self._tips.find(agent, tools, given)
            with found.reserved():
                origin = found.origin if number == 1 else f"attempt {number}: {found.origin}"
                continued = found.messages(messages), found.continuation
                reply = await self._team[agent].answer(*continued, origin=origin, **settings)
                check_tokens(found, reply)
            if self._fits(reply, agent, asked):
                break
        served = self._served(reply, asked)
        tip = Tip(reply, found)
        # Store the program's own messages. The prompt of the act may differ, because an agent can have its own system
        # prompt.
        self._transcripts[served.id] = [*messages[bool(asked.instructions) :], served.message]
        self._tip_of[reply] = tip
        spelled = spellings(canonical(served.message), served.stopped_by, thinking=self._rules.thinking == "keep")
        self._tips.add(agent, tools, given, spelled, tip)
        return served

    def _fits(self, reply: Reply, agent: str, asked: Asked) -> bool:
        """Whether a reply fits the JSON schema of its request. A reply with tool calls is not checked against the
        schema."""
        if asked.schema and agent in self._rules.typed and not reply.tool_calls:
            reply.malformed = misfit(cut_at(reply.text, asked.stop)[0], asked.schema) or reply.malformed
        return not reply.malformed

    def agent_of(self, model: str, agent: str = "") -> str:
        """Return the agent of a request: the agent in its URL, or else the agent to which the model's name is
        mapped."""
        models = {} if agent else self._rules.models
        asked = agent or model
        name = models.get(asked) or (asked if asked in self.agents else models.get("*"))
        if name is None:
            named = "the name in the address" if agent else "the name of a model"
            message = f"no agent {asked!r:.80}; {named} is that of an agent: {nearest(asked, self.agents)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return name

    def _transcript(self, asked: Asked) -> list[Message]:
        """Return the whole transcript of a request. A request may name the previous reply by id, and send only the
        messages after it."""
        if asked.after is not None and asked.after not in self._transcripts:
            raise ApiError(404, f"no reply {asked.after!r:.80} in this session", param="previous_response_id")
        before = () if asked.after is None else self._transcripts[asked.after]
        instructions = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
        if not (messages := [*instructions, *before, *asked.messages]):
            raise ApiError(400, "no messages; they are a list of at least one", param="messages")
        return messages

    def _settings(self, agent: str, asked: Asked) -> dict[str, object]:
        """Return the settings of a request that have an effect: `max_tokens` and `stop`, which shorten a reply.
        Temperature and similar settings are ignored, because frameworks send 0 or 1 by default, and with temperature 0
        the sessions of a group would be equal."""
        given = {name: asked.unused[name] for name in SAMPLING if name in asked.unused}
        if unknown := {(agent, name) for name in given} - _NAMED:
            _NAMED.update(unknown)
            text = "the program asks %s with %s, which has no effect: mas.agents.%s.sampling counts"
            logger.warning(text, agent, given, agent)
        own = {"max_tokens": asked.max_tokens, "stop": list(asked.stop)}
        settings: dict[str, object] = {name: value for name, value in own.items() if value not in (None, [])}
        try:
            if settings:
                load_dataclass(Sampling, settings, "request")
        except ConfigError as error:
            raise ApiError(400, str(error)) from error
        return settings

    def _served(self, reply: Reply, asked: Asked) -> Served:
        calls = [replace(call, id=self._call_id(call.id)) for call in reply.tool_calls]
        message = message_of(reply.generation, calls)
        if calls:
            called = zip(message["tool_calls"], calls, strict=True)
            message["tool_calls"] = [{**one, "id": call.id} for one, call in called]
        reply.tool_calls, reply.steps = calls, (message,)
        text, stopped_by = cut_at(reply.text, asked.stop)
        return Served(f"act_{self._named}_{next(self._acts)}", reply, text, calls, stopped_by)

    def _call_id(self, given: str | None) -> str:
        """Return `given`, or a new id if `given` is None or used, because the ids of calls must be unique for programs.
        Some chat templates accept only ids of nine letters and digits."""
        while given is None or given in self._call_ids:
            given = f"c{next(self._calls):08d}"
        self._call_ids.add(given)
        return given

    def _forget(self, exchange: Exchange) -> None:
        """Remove an act whose reply no client has received or requested again, unless another request continues its
        row."""
        reply = exchange.reply
        if not exchange.lost or exchange not in self._exchanges or (reply and self._tip_of[reply].taken):
            return
        self._exchanges.remove(exchange)
        exchange.act.cancel()
        if reply is not None:
            remove(self._tip_of.pop(reply))
            self._team.forget(reply)


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before the first stop string, and this stop string. If the text has no stop string, return the
    whole text and None."""
    places = [(text.index(stop), stop) for stop in stops if stop in text]
    if not places:
        return text, None
    place, stop = min(places)
    return text[:place], stop


def check_tokens(found: Found, reply: Reply) -> None:
    """Raise EngineLost if the tokens of an act do not begin with the tokens of the act that it continues. Such a row
    must not be trained on."""
    new, old = reply.generation, found.tip.reply.generation if found.tip else None
    if not new.has_tokens:
        return
    prompt, response = new.prompt_ids, new.response_ids
    lengths = {len(response), len(new.response_mask), len(new.log_probs or response)}
    begins = True
    if old is not None:
        if not found.same_row:
            prompt, response = prompt[: len(old.prompt_ids)], prompt[len(old.prompt_ids) :]
        # The last token of the old response may differ, because some model families use a single token that ends a
        # reply and begins the next message.
        last = len(old.response_ids) - 1
        begins = prompt == old.prompt_ids and response[:last] == old.response_ids[:last]
    if not begins or len(lengths) > 1:
        what = f"the tokens of {reply.agent} in turn {reply.turn} do not begin with those of the act that it continues"
        raise EngineLost(f"{what}, or have masks and log-probs of other lengths {sorted(lengths)}: please report it")
