"""Plays a program at an endpoint that takes every name of a model, with replies by which the program shows its agents.

A reply calls the next of the offered tools that has not been called, as handoffs and agents behind tools are called.
When all have been, it is a text, or a JSON value of the schema that is asked for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NamedTuple

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import EngineLost, SessionFault
from verl_mas.gateway.runner import Gateway, ProgramTask
from verl_mas.gateway.session import GatewaySession
from verl_mas.testing.scripted_llm import Answer, ScriptedLLM, calls
from verl_mas.workflow.client import Request
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.run import run
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflows.program import ReferredProgram

MOST_PLAYS = 6
# How a prompt asks for JSON: `with_schema` of `verl_mas.gateway.dialect`.
SCHEMA = "Reply with one JSON value of this schema, and nothing else:\n"
MOST_CHOICES = 5
MOST_LEVELS = 8  # of a schema that contains itself


class Name(NamedTuple):
    """How a request names its agent: by the name of a model or, where there is one, by its address."""

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

    async def play(self, task: ProgramTask, gateway: Gateway) -> JsonObject:
        self.outcome = await super().play(task, gateway)
        return self.outcome

    def variables(self, gateway: Gateway) -> dict[str, str]:
        names = [name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]
        proxy = {**dict.fromkeys(names, self.proxy), "NODE_USE_ENV_PROXY": "1"} if self.proxy else {}
        return super().variables(gateway) | proxy


@dataclass(frozen=True)
class Act:
    name: Name
    prompt: str
    answer: Answer


@dataclass
class Play:
    """One session: its acts, and how the program ended."""

    acts: list[Act] = field(default_factory=list)
    outcome: JsonObject = field(default_factory=dict)
    fault: str = ""

    @property
    def names(self) -> list[Name]:
        return list(dict.fromkeys(act.name for act in self.acts))


class Explorer:
    """Plays a program until it is offered no further tool. `text` is the reply that calls none."""

    def __init__(self, arguments: Mapping[str, object], task: Task, text: str, limit_s: float):
        self.arguments, self.task, self.text, self.limit_s = arguments, task, text, limit_s
        self.plays: list[Play] = []
        self._offered, self._called = set[tuple[str, str, int]](), set[tuple[str, str, int]]()

    def explore(self) -> Play:
        """The play that ended well with the most agents, or one that failed."""
        called = -1
        while self._offered - self._called or not self.plays:
            if len(self._called) == called or len(self.plays) == MOST_PLAYS:
                break
            called = len(self._called)
            self.plays.append(self.play())
        return max(self.plays, key=lambda play: (not play.fault, len(play.names)))

    def play(self, proxy: str = "") -> Play:
        played = Play()
        program = Explored(**{**self.arguments, "agents": ("every_name",), "start_s": self.limit_s, "proxy": proxy})
        faults = FaultSpec(retries=0, session_timeout_s=self.limit_s)

        def answer(request: Request, branch: int) -> Answer:
            prompt = "\n".join(map(text_of, request.messages))
            played.acts.append(Act(ASKED.get(), prompt + json.dumps(request.tools), self._answer(request, prompt)))
            return played.acts[-1].answer

        try:
            run(program, self.task, ScriptedLLM(answer), faults=faults)
            played.outcome = program.outcome
        except (SessionFault, EngineLost) as error:
            played.fault = str(error)
        return played

    def hosts(self) -> Sequence[str]:
        """Hosts that the program asks, with a proxy that answers for none of them."""
        with refusing_proxy() as (proxy, hosts):
            self.play(proxy)
        return hosts

    def _answer(self, request: Request, prompt: str) -> Answer:
        offered = [tool["function"] for tool in request.tools]
        together = ",".join(sorted(function["name"] for function in offered))
        known = [(together, function["name"], n) for function in offered for n in range(_choices(function))]
        self._offered |= {*known}
        new = [call for call in known if call not in self._called]
        said = next((text_of(each) for each in reversed(request.messages) if each["role"] == "assistant"), "")
        # A text that is not accepted: frameworks offer the tool that takes the answer after the others.
        for call in new or (known[-1:] if said == self.text else ()):
            self._called.add(call)
            parameters = next(each["parameters"] for each in offered if each["name"] == call[1])
            return calls((call[1], Example(parameters, self.text, call[2]).value(parameters)))
        if SCHEMA not in prompt:
            return self.text
        schema, _ = json.JSONDecoder().raw_decode(prompt.partition(SCHEMA)[2])
        return json.dumps(Example(schema, self.text).value(schema))


def _choices(function: JsonObject) -> int:
    """How often a tool is called: once for each value of an argument that is a choice, such as the name of an agent."""
    properties = function["parameters"].get("properties", {}).values()
    return min(MOST_CHOICES, max((len(each.get("enum", "1")) for each in properties), default=1))


@dataclass(frozen=True)
class Example:
    """Values of a JSON schema. `choice`: which of several values."""

    root: JsonObject
    text: str
    choice: int = 0

    def value(self, schema: JsonObject, level: int = 0) -> object:
        if "$ref" in schema:
            schema = reduce(lambda part, name: part[name], schema["$ref"].split("/")[1:], self.root)
        if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return self.value(options[0], level + 1)
        if choices := schema.get("enum") or [schema[name] for name in ("const", "default") if name in schema]:
            return choices[self.choice % len(choices)]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        inner = level < MOST_LEVELS
        if kind == "object":
            return {name: self.value(each, level + 1) for name, each in schema.get("properties", {}).items() if inner}
        if kind == "array":
            return [self.value(schema["items"], level + 1)] if inner and "items" in schema else []
        number = schema.get("minimum", 1)
        return {"integer": number, "number": number, "boolean": True, "null": None}.get(str(kind), self.text)


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[str]]]:
    """The address of a proxy, and the hosts that it was asked for: it connects to none."""
    hosts: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            hosts.extend({self.path} - {*hosts})
            self.send_error(403)

        do_GET = do_POST = do_CONNECT  # names of http.server

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", hosts
        server.shutdown()
