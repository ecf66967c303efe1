"""Programs change their histories in any way and in any protocol. Every sampled token must still be trained once, after
the tokens after which it was sampled. A second implementation of the rules must find the same rows."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import reference_rows
from client_protocols import STOP, Protocol, Turn, spelled
from gateway_sessions import AGENTS, Opened, opened

from verl_mas.errors import FaultKind, SessionFault
from verl_mas.gateway.dialect import DIALECTS, Asked, Fields
from verl_mas.gateway.session import Exchange
from verl_mas.workflow.client import Generation, Message, Request, ToolCall
from verl_mas.workflow.reply import Reply

FIRST_SAMPLED = 2_000_000  # other tokens are characters


def whole(generation: Generation) -> list[int]:
    return [*generation.prompt_ids, *generation.response_ids]


def parts(generation: Generation) -> tuple[list[int], list[int]]:
    """Return the tokens that the engine got, and the tokens that it sampled."""
    ids = whole(generation)
    begin = len(ids) - generation.sampled
    return ids[:begin], ids[begin:]


# -- an engine that never samples the same token twice ----------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """The next reply of the engine, in the form that the program gets."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    stop: str | None = None  # the stop string that ended it
    end: str = "completed"  # or the reason why the reply cannot be continued: length, empty or full

    @property
    def sampled(self) -> str:
        return _rendered(self.text + (self.stop or ""), self.calls)


@dataclass
class Sampled:
    prompt: list[int]
    ids: list[int]
    log_probs: list[float]


@dataclass
class Engine:
    """Each request waits in `asked` for its reply."""

    asked: asyncio.Queue[asyncio.Future[Written]] = field(default_factory=asyncio.Queue)
    acts: dict[int, Sampled] = field(default_factory=dict)  # by the first token
    tokens: list[str] = field(default_factory=list)

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        continues = request.continues
        before = whole(continues.generation) if continues else []
        prompt = [*before, *map(ord, _transcript(request.messages[continues.known if continues else 0 :]))]
        reply = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(reply)
        return [self._generation(request, prompt, await reply)]

    def _generation(self, request: Request, prompt: list[int], reply: Written) -> Generation:
        pieces = [] if reply.end == "empty" else re.findall(r".{1,4}", reply.sampled, re.DOTALL)
        ids = [FIRST_SAMPLED + len(self.tokens) + place for place in range(len(pieces))]
        self.tokens += pieces
        log_probs = [-1 / token for token in ids]
        if ids:
            self.acts[ids[0]] = Sampled(prompt, ids, log_probs)
        same = request.continues.generation if request.continues and request.continues.row is not None else None
        begins = len(same.prompt_ids) if same else len(prompt)
        observed = len(prompt) - begins - (len(same.response_ids) if same else 0)
        return Generation(
            reply.text + (reply.stop or ""),
            stop_reason=reply.end,
            prompt_ids=prompt[:begins],
            response_ids=[*prompt[begins:], *ids],
            response_mask=[*(same.response_mask if same else ()), *[0] * observed, *[1] * len(ids)],
            log_probs=[*((same.log_probs or ()) if same else ()), *[0.0] * observed, *log_probs],
            sampled=len(ids),
            tool_calls=[ToolCall(name, arguments) for name, arguments in reply.calls],
            full=reply.end == "full",
        )

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) if i < FIRST_SAMPLED else self.tokens[i - FIRST_SAMPLED] for i in ids)


def _transcript(messages: Sequence[Message]) -> str:
    each = [
        (m["role"], m["content"], [_called(**call["function"]) for call in m.get("tool_calls", ())]) for m in messages
    ]
    return "".join(f"[{role}]{_rendered(text, calls)}" for role, text, calls in each) + "[assistant]"


def _called(name: str, arguments: object) -> tuple[str, str]:
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments)


def _rendered(text: str, calls: Sequence[tuple[str, str]]) -> str:
    return text + "".join(f"<{name}>{spelled(given, sort_keys=True)}" for name, given in calls)


# -- the second implementation -----------------------------------------------------------------------------------------


class Acts(dict):  # type: ignore[type-arg]
    """Acts by their transcripts. For equal transcripts, it has the latest act whose row is open."""

    hidden = False

    def __init__(self, rows: list[int]):
        self.rows = rows

    def __contains__(self, key: object) -> bool:
        return not self.hidden and super().__contains__(key)

    def __getitem__(self, key: Any) -> int:
        acts = super().__getitem__(key)
        return next((act for act in reversed(acts) if self.rows[act] not in self.rows[act + 1 :]), acts[-1])

    def __setitem__(self, key: Any, act: int) -> None:
        agent, tools, (*before, reply) = key
        without = reply._replace(content=reply.content.rpartition("</think>")[2])
        for spelling in {reply, without}:
            self.setdefault((agent, tools, (*before, spelling)), []).append(act)

    def remove(self, act: int) -> None:
        for key, acts in list(self.items()):
            if act in acts:
                acts.remove(act)
                if not acts:
                    del self[key]


class Reference(reference_rows.Session):
    """A reference that also covers what no recorded program does: equal replies, replies that cannot be continued,
    prompts that end with a reply, and clients that leave."""

    def __init__(self) -> None:
        super().__init__()
        self.transcripts = Acts(self.rows)

    def place(self, request: reference_rows.Json) -> reference_rows.Placed:
        *_, last = reference_rows.transcript(request["path"], request["body"])
        self.transcripts.hidden = last.role == "assistant"
        placed = super().place(request)
        if request["reply"]["end"] != "completed":
            self.transcripts.remove(len(self.rows) - 1)
        return placed

    def forget(self, act: int) -> None:
        self.rows[act] = -1 - act
        self.transcripts.remove(act)


# -- a program that rewrites its histories -----------------------------------------------------------------------------


FATES = ["served"] * 10 + ["back", "twice", "refused", "gone", "unread"]
EDITS = ["none"] * 8 + ["edit", "drop", "swap", "repeat", "cut", "insert", "older", "older", "again", "again", "fresh"]
CALLS = (("add", '{"a": 1, "b": 2}'), ("mul", '{"b": {"y": 1, "x": [2.0]}, "a": "\\u00e9"}'), ("no_such", "{"))


@dataclass(eq=False)
class Sent:
    """A request and its fate: it is served; its client leaves and comes back, or sends it twice; the engine refuses it;
    its client is gone before the reply, or does not read it."""

    number: int  # of the act
    agent: str
    turns: tuple[Turn, ...]
    system: str
    body: dict[str, Any]
    written: Written
    fate: str
    exchange: Exchange | None = None

    @property
    def reply(self) -> Reply | None:
        """The reply; None if it reached no client."""
        return self.exchange.reply if self.exchange and self.fate in ("served", "back", "twice") else None


class Program:
    def __init__(self, team: Opened, engine: Engine, rng: random.Random):
        self.team, self.engine, self.rng, self.reference = team, engine, rng, Reference()
        self.protocols = {agent: Protocol(rng, DIALECTS[rng.choice([*DIALECTS])]) for agent in AGENTS}
        self.histories: dict[str, tuple[Turn, ...]] = dict.fromkeys(AGENTS, (Turn("user", "q"),))
        self.older = [(Turn("user", "p"),)]
        self.drops_thoughts, self.adds_stops = rng.random() < 0.5, rng.random() < 0.5
        self.systems, self.tools = dict.fromkeys(AGENTS, "be brief"), dict.fromkeys(AGENTS, ("add",))
        self.acts: list[Sent] = []
        self.named: dict[tuple[str, tuple[Turn, ...]], Sent] = {}  # replies that a later request can name

    async def step(self) -> None:
        """Send some requests at the same time, then check everything."""
        several = self.rng.choice([1, 1, 1, 2, 3])
        batch = [self._request(len(self.acts) + place, alone=several == 1) for place in range(several)]
        self.acts += batch
        with ExitStack() as readers:
            for sent in batch:
                self._send(sent, readers)
            answers = [(sent, await self.engine.asked.get()) for sent in batch]
            self.rng.shuffle(answers)
            for sent, answer in answers:
                await self._answer(sent, answer)
        await asyncio.sleep(0)  # the session cancels and forgets acts whose client is gone
        await asyncio.wait([sent.exchange.act for sent in batch])
        self._place(batch)
        check_rows(self.team, self.engine, self.acts)

    def _request(self, number: int, *, alone: bool) -> Sent:
        rng, agent = self.rng, self.rng.choice(AGENTS)
        if rng.random() < 0.05:
            self.systems[agent] = rng.choice(["", "be brief", "be long"])
        if rng.random() < 0.05:
            self.tools[agent] = rng.choice([(), ("add",), ("add", "mul")])
        system, tools, turns = self.systems[agent], self.tools[agent], self._edited(agent)
        protocol, stop = self.protocols[agent], rng.random() < 0.5
        before = [end for end in range(len(turns)) if (agent, turns[:end]) in self.named]
        known = before[-1] if before and rng.random() < 0.5 else 0
        body = {"model": agent, **protocol.body(system, turns[known:], tools, stop=stop)}
        if known:
            body["previous_response_id"] = self.named[agent, turns[:known]].exchange.act.result().id
        written = self._written(number, tools, stop=bool({"stop", "stop_sequences"} & {*body}), alone=alone)
        return Sent(number, agent, turns, system, body, written, rng.choice(FATES))

    def _edited(self, agent: str) -> tuple[Turn, ...]:
        edit, turns = self.rng.choice(EDITS), list(self.histories[agent])
        at = self.rng.randrange(len(turns))
        if edit == "edit":
            turns[at] = replace(turns[at], text=turns[at].text + "!")
        elif edit == "drop":
            del turns[at]
        elif edit == "swap":
            turns[at : at + 2] = turns[at : at + 2][::-1]
        elif edit == "repeat":
            turns.insert(at, turns[at])
        elif edit == "cut":
            del turns[at + 1 :]
        elif edit == "insert":
            other = self.rng.choice(self.older)[-1]
            turns.insert(at, replace(other, role=self.rng.choice(["user", "assistant"]), calls=()))
        elif edit == "older":
            turns = list(self.rng.choice(self.older[-4:]))
        elif edit == "again" and self.acts:
            turns = list(self.rng.choice(self.acts[-4:]).turns)
        if edit == "fresh" or not turns or len(turns) > 20:
            turns = [Turn("user", self.rng.choice("pq"))]
        if turns[-1].role == "assistant" and self.protocols[agent].dialect.path == "/v1/messages":
            turns.append(Turn("user", "more"))  # otherwise the request would be a prefill
        return tuple(turns)

    def _written(self, number: int, tools: Sequence[str], *, stop: bool, alone: bool) -> Written:
        """Make a reply. Replies of concurrent requests differ, because the engine would decide which of two equal
        replies is later."""
        rng = self.rng
        text = "yes" if alone and rng.random() < 0.6 else f"r{number}"
        text = f"<think>t{number % 2}</think>{text}" if rng.random() < 0.3 else text
        calls = tuple(rng.sample(CALLS, rng.choice([1, 2]))) if tools and rng.random() < 0.3 else ()
        end = rng.choices(["completed", "length", "empty", "full"], [20, 1, 1, 1])[0]
        if end == "empty":
            return Written("", end=end)
        return Written(text, () if end == "length" else calls, STOP if stop and rng.random() < 0.5 else None, end)

    def _send(self, sent: Sent, readers: ExitStack) -> None:
        body = json.dumps(sent.body).encode()
        asked = self.protocols[sent.agent].dialect.read(Fields.of(body))
        if sent.fate == "back":
            with self.team.gateway.exchange(asked, body):
                pass
        sent.exchange = readers.enter_context(self.team.gateway.exchange(asked, body))
        if sent.fate == "twice":
            assert readers.enter_context(self.team.gateway.exchange(asked, body, again=True)) is sent.exchange

    async def _answer(self, sent: Sent, answer: asyncio.Future[Written]) -> None:
        if sent.fate == "gone":
            return
        if sent.fate == "refused":
            answer.set_exception(SessionFault(FaultKind.REFUSED, "the engine refuses"))
        else:
            answer.set_result(sent.written)
        await asyncio.wait([sent.exchange.act])
        if sent.reply is not None:
            sent.exchange.delivered = True
            self._received(sent)

    def _received(self, sent: Sent) -> None:
        protocol, served = self.protocols[sent.agent], sent.exchange.act.result()
        turn = protocol.reply(json.loads(json.dumps(protocol.dialect.whole(Asked(sent.agent, []), served))))
        assert turn.text == sent.written.text
        if "input" in sent.body:
            self.named[sent.agent, (*sent.turns, turn)] = sent
        elif self.drops_thoughts:
            turn = replace(turn, text=turn.text.rpartition("</think>")[2])
        if self.adds_stops:
            turn = replace(turn, text=turn.text + (sent.written.stop or ""))
        after = [Turn("tool", f"result {name}") for name, _ in turn.calls]
        history = (*sent.turns, turn, *(after or [Turn("user", self.rng.choice(["more", f"u{sent.number}"]))]))
        self.histories[sent.agent] = history
        self.older.append(history)

    def _place(self, batch: Sequence[Sent]) -> None:
        for sent in batch:
            check_prompt(self.engine, sent, self._given(sent))
        placed = [self.reference.place(self._recorded(sent)) for sent in batch]
        for sent, place in zip(batch, placed, strict=True):
            if sent.reply is None:
                self.reference.forget(sent.number)
            else:
                assert origin(sent.reply) == place.why, (sent.number, sent.reply.origin, place)
        rows: dict[int, list[int]] = {}
        for number, row in enumerate(self.reference.rows):
            if row >= 0:
                rows.setdefault(row, []).append(number)
        assert numbered(self.team, self.acts) == sorted(rows.values())

    def _recorded(self, sent: Sent) -> dict[str, Any]:
        written = sent.written
        reply = {"text": written.text, "calls": [dict([call]) for call in written.calls]}
        body = sent.body
        if after := body.get("previous_response_id"):
            [before] = [each for each in self.named.values() if each.exchange.act.result().id == after]
            body = {**body, "previous_response_id": f"resp_{before.number + 1}"}
        path = self.protocols[sent.agent].dialect.path
        return {"path": path, "body": body, "reply": {**reply, "stop": written.stop, "end": written.end}}

    def _given(self, sent: Sent) -> str:
        """Render the prompt as the request has it."""
        recorded = self._recorded(sent)
        before = self.reference.by_response.get(recorded["body"].get("previous_response_id"), ())
        system = [reference_rows.Message("system", sent.system)] if sent.system else []
        if "messages" in sent.body and sent.body["messages"][0]["role"] in ("system", "developer"):
            system = []
        messages = [*system, *before, *reference_rows.transcript(recorded["path"], sent.body)]
        return "".join(f"[{m.role}]{_rendered(m.content, m.calls)}" for m in messages) + "[assistant]"


def origin(reply: Reply) -> str:
    return reply.origin.partition(" ")[0].rstrip(":")


def numbered(team: Opened, acts: Sequence[Sent]) -> list[list[int]]:
    """Return the numbers of the acts of each row."""
    numbers = {sent.reply: sent.number for sent in acts if sent.reply is not None}
    return sorted([numbers[reply] for reply in row.replies] for row in team.session.rows())


def check_prompt(engine: Engine, sent: Sent, given: str) -> None:
    """Check that the engine got the prompt of the request. Its replies may have parts that the program left out."""
    if sent.reply is not None:
        prompt = engine.text(parts(sent.reply.generation)[0])
        left_out = re.compile(rf"<think>.*?</think>|{STOP}")
        assert left_out.sub("", prompt) == left_out.sub("", given), sent


def check_rows(team: Opened, engine: Engine, acts: Sequence[Sent]) -> None:
    """Check that every sampled token is trained once, with its log-prob, after the tokens after which it was
    sampled."""
    trained = []
    for row in team.session.rows():
        ids, prompt = whole(row.generation), [0] * len(row.generation.prompt_ids)
        mask, log_probs = [*prompt, *row.generation.response_mask], [*prompt, *(row.generation.log_probs or ())]
        at = 0
        while 1 in mask[at:]:
            at = mask.index(1, at)
            act = engine.acts[ids[at]]
            end = at + len(act.ids)
            assert (ids[:at], ids[at:end], log_probs[at:end]) == (act.prompt, act.ids, act.log_probs)
            assert mask[at:end] == [1] * len(act.ids)
            trained += act.ids
            at = end
    replies = [sent.reply for sent in acts if sent.reply is not None]
    kept = [token for reply in replies for token in parts(reply.generation)[1]]
    assert sorted(trained) == sorted(kept)
    assert {id(reply) for reply in replies} == {id(reply) for reply in team.session.replies}


async def play(seed: int, acts: int) -> Counter[str]:
    """Count the acts that were continued, branched and new, and the acts that reached no program."""
    rng, engine = random.Random(seed), Engine()
    async with opened(engine, max_acts=10**6, grace_s=0.0, tolerate=["refused"]) as team:
        program = Program(team, engine, rng)
        while len(program.acts) < acts:
            await program.step()
        return Counter(origin(sent.reply) if sent.reply else "lost" for sent in program.acts)


@pytest.mark.parametrize("sessions", [5, pytest.param(250, marks=pytest.mark.nightly)])
async def test_every_sampled_token_is_trained_once_and_the_rows_are_those_of_the_reference(sessions):
    origins: Counter[str] = Counter()
    for seed in range(sessions):
        try:
            origins += await play(seed, acts=40)
        except AssertionError as error:
            raise AssertionError(f"in session {seed}") from error
    assert min(origins[kind] for kind in ("new", "continued", "branched", "lost")) > sessions, origins
