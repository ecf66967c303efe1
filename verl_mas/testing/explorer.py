"""Plays a program at an endpoint that takes every name of a model, with replies by which the program shows its agents.

A reply calls the next of the offered tools that has not been called, as handoffs and agents behind tools are called.
When all have been, it is a text, or a JSON value of the schema that is asked for.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, NamedTuple

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import EngineLost, SessionFault
from verl_mas.gateway.runner import Gateway
from verl_mas.gateway.session import GatewaySession
from verl_mas.testing.scripted_llm import Answer, ScriptedLLM, calls
from verl_mas.workflow.client import Request
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.run import run
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflows.program import ReferredProgram

MOST_PLAYS, MOST_CHOICES, MOST_LEVELS = 6, 5, 8
# How a prompt asks for JSON: `with_schema` of `verl_mas.gateway.dialect`.
SCHEMA = "Reply with one JSON value of this schema, and nothing else:\n"
PROXIES = [f"{kind}_proxy" for kind in ("http", "https", "all")]


class Name(NamedTuple):
    """How a request names its agent: by the name of a model or, if there is one, by its address."""

    text: str
    in_address: bool


ASKED: ContextVar[Name] = ContextVar("asked")


class EveryName(GatewaySession):
    def agent_of(self, model: str, agent: str = "") -> str:
        ASKED.set(Name(agent or model, bool(agent)))
        return self.agents[0]


class Explored(ReferredProgram):
    """A program whose agents are not known yet."""

    session_kind: ClassVar = EveryName

    proxy: str = ""
    """The proxy for requests that leave this machine; empty: that of the environment."""

    def variables(self, gateway: Gateway) -> dict[str, str]:
        proxies = dict.fromkeys([*PROXIES, *map(str.upper, PROXIES)], self.proxy) | {"NODE_USE_ENV_PROXY": "1"}
        return super().variables(gateway) | (proxies if self.proxy else {})


class Act(NamedTuple):
    name: Name
    prompt: str
    answer: Answer


@dataclass
class Play:
    """One session: its acts, whether the program set a reward, and why it failed."""

    acts: list[Act] = field(default_factory=list)
    rewarded: bool = False
    fault: str = ""

    @property
    def counts(self) -> Mapping[Name, int]:
        return Counter(act.name for act in self.acts)


@dataclass
class Explorer:
    """Plays a program until it offers no further tool. `text` is the reply that calls none."""

    arguments: JsonObject
    task: Task
    text: str
    limit_s: float
    plays: list[Play] = field(default_factory=list)
    offered: set[tuple[str, ...]] = field(default_factory=set)
    called: set[tuple[str, ...]] = field(default_factory=set)

    def explore(self) -> Play:
        """The play that ended well with the most agents, or one that failed."""
        before = None
        while before != self.called and len(self.plays) < MOST_PLAYS and (not self.plays or self.offered - self.called):
            before = {*self.called}
            self.plays.append(self.play())
        return max(self.plays, key=lambda play: (not play.fault, len(play.counts)))

    def play(self, proxy: str = "") -> Play:
        play = Play()
        own = {"agents": ("any",), "models": {}, "start_s": self.limit_s, "proxy": proxy}
        program = Explored(**{**self.arguments, **own})

        def answer(request: Request, branch: int) -> Answer:
            prompt = "\n".join(map(text_of, request.messages))
            play.acts.append(Act(ASKED.get(), prompt + json.dumps(request.tools), self.reply(request, prompt)))
            return play.acts[-1].answer

        try:
            faults = FaultSpec(retries=0, session_timeout_s=self.limit_s)
            outcome = run(program, self.task, ScriptedLLM(answer), faults=faults).outcome
            play.rewarded = outcome is not None and outcome.reward is not None
        except (SessionFault, EngineLost) as error:
            play.fault = str(error)
        return play

    def reply(self, request: Request, prompt: str) -> Answer:
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.tools}
        known = [(*sorted(offered), name, str(n)) for name in offered for n in range(_choices(offered[name]))]
        self.offered.update(known)
        last_reply = next((text_of(each) for each in reversed(request.messages) if each["role"] == "assistant"), "")
        # A text that is not accepted: frameworks offer the tool that takes the answer after the others.
        for call in [call for call in known if call not in self.called] or known[-1:] * (last_reply == self.text):
            self.called.add(call)
            arguments = self._value(offered[call[-2]], offered[call[-2]], int(call[-1]))
            return calls((call[-2], arguments if isinstance(arguments, dict) else {}))
        if SCHEMA not in prompt:
            return self.text
        schema, _ = json.JSONDecoder().raw_decode(prompt.partition(SCHEMA)[2])
        return json.dumps(self._value(schema, schema))

    def _value(self, schema: JsonObject, root: JsonObject, choice: int = 0, level: int = 0) -> object:
        """An example of a JSON schema. `choice`: which of several values."""
        if "$ref" in schema:
            schema = reduce(lambda part, name: part[name], schema["$ref"].split("/")[1:], root)
        if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return self._value(options[0], root, choice, level + 1)
        if choices := schema.get("enum") or [schema[name] for name in ("const", "default") if name in schema]:
            return choices[choice % len(choices)]
        inner = level < MOST_LEVELS
        properties = schema.get("properties", {}).items() if inner else ()
        if properties or schema.get("type") == "object":
            return {name: self._value(each, root, choice, level + 1) for name, each in properties}
        if schema.get("type") == "array":
            return [self._value(schema["items"], root, choice, level + 1)] if inner and "items" in schema else []
        number = schema.get("minimum", 1)
        simple = {"integer": number, "number": number, "boolean": True, "null": None}
        return simple.get(str(schema.get("type")), self.text)


def _choices(parameters: JsonObject) -> int:
    """How often a tool is called: once for each value of an argument that is a choice, such as the name of an agent."""
    choices = (len(each.get("enum", "1")) for each in parameters.get("properties", {}).values())
    return min(MOST_CHOICES, max(choices, default=1))


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[str]]]:
    """The address of a proxy, and the hosts that it was asked for: it connects to none."""
    hosts: list[str] = []

    class Refusing(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            hosts.extend({self.rfile.readline().split()[1].decode()} - {*hosts})

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", hosts
        server.shutdown()
