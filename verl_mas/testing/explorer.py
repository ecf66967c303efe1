"""Discovery of a program's agents: the program runs against an endpoint that accepts every model name.

Frameworks offer other agents (handoffs, or agents used as tools) as tools of a request. So each reply calls the next
offered tool that has not been called.
When all tools have been called, the reply is a text, or a JSON value of the requested schema.
"""

import json
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import ClassVar, NamedTuple

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import EngineLost, SessionFault
from verl_mas.gateway.session import GatewaySession
from verl_mas.testing.scripted_llm import Answer, ScriptedLLM, calls
from verl_mas.workflow.client import Request
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.run import run
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflows.program import ReferredProgram

MOST_PLAYS, MOST_CHOICES, MOST_LEVELS = 6, 5, 8
# The text with which `verl_mas.gateway.dialect.with_schema` requests JSON.
SCHEMA = "Reply with one JSON value of this schema, and nothing else:\n"
# The agent that a request names in its URL, or else as its model.
ASKED: ContextVar[str] = ContextVar("asked")


class EveryName(GatewaySession):
    def agent_of(self, model: str, agent: str = "") -> str:
        ASKED.set(agent or model)
        return self.agents[0]


class Explored(ReferredProgram):
    """A program whose agents are not known yet."""

    session_kind: ClassVar = EveryName


class Act(NamedTuple):
    asked: str
    prompt: str
    answer: Answer


@dataclass
class Play:
    """One session: its acts, whether the program set a reward, and the fault if it failed."""

    acts: list[Act] = field(default_factory=list)
    rewarded: bool = False
    fault: str = ""


@dataclass
class Explorer:
    """Plays a program until a play calls no new tool, at most MOST_PLAYS times. `text`: the reply without a call."""

    arguments: JsonObject
    task: Task
    text: str
    limit_s: float
    plays: list[Play] = field(default_factory=list)
    called: set[tuple[str, ...]] = field(default_factory=set)

    def explore(self) -> Play:
        """Return the successful play with the most agents; a failed play if every play failed."""
        for _ in range(MOST_PLAYS):
            before = {*self.called}
            self.plays.append(self.play())
            if self.called == before:
                break
        return max(self.plays, key=lambda play: (not play.fault, len({act.asked for act in play.acts})))

    def play(self) -> Play:
        play = Play()
        own = {"agents": ("any",), "models": {}, "start_s": self.limit_s}

        def answer(request: Request, branch: int) -> Answer:
            prompt = "\n".join(map(text_of, request.messages))
            play.acts.append(Act(ASKED.get(), prompt + json.dumps(request.tools), self.reply(request, prompt)))
            return play.acts[-1].answer

        try:
            faults = FaultSpec(retries=0, session_timeout_s=self.limit_s)
            outcome = run(Explored(**{**self.arguments, **own}), self.task, ScriptedLLM(answer), faults=faults).outcome
            play.rewarded = outcome is not None and outcome.reward is not None
        except (SessionFault, EngineLost) as error:
            play.fault = str(error)
        return play

    def reply(self, request: Request, prompt: str) -> Answer:
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.tools}
        known = [(*sorted(offered), name, str(n)) for name in offered for n in range(_choices(offered[name]))]
        last_reply = next((text_of(each) for each in reversed(request.messages) if each["role"] == "assistant"), "")
        # If the last reply was already `self.text`, the program did not accept this text as an answer. Then call the
        # last tool, because frameworks put the tool that takes the answer last.
        for call in [call for call in known if call not in self.called] or known[-1:] * (last_reply == self.text):
            self.called.add(call)
            schema = {"type": "object", **offered[call[-2]]}
            return calls((call[-2], json.dumps(self._value(schema, schema, int(call[-1])))))
        if SCHEMA not in prompt:
            return self.text
        schema, _ = json.JSONDecoder().raw_decode(prompt.partition(SCHEMA)[2])
        return json.dumps(self._value(schema, schema))

    def _value(self, schema: JsonObject, root: JsonObject, choice: int = 0, level: int = 0) -> object:
        """Make an example value of a JSON schema. `choice`: index of the value if several are allowed."""
        inside = partial(self._value, root=root, choice=choice, level=level + 1)
        if "$ref" in schema:
            schema = reduce(lambda part, name: part[name], schema["$ref"].split("/")[1:], root)
        if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return inside(options[0])
        if choices := schema.get("enum") or [schema[name] for name in ("const", "default") if name in schema]:
            return choices[choice % len(choices)]
        inner = schema if level < MOST_LEVELS else {}
        fields = {name: inside(each) for name, each in inner.get("properties", {}).items()}
        items = [inside(inner["items"])] if "items" in inner else []
        number = schema.get("minimum", 1)
        simple = {"object": fields, "array": items, "integer": number, "number": number, "boolean": True, "null": None}
        return simple.get(str(schema.get("type")), self.text)


def _choices(parameters: JsonObject) -> int:
    """Return how often to call a tool: once per value of an argument with choices, such as the name of an agent."""
    choices = (len(each.get("enum", "1")) for each in parameters.get("properties", {}).values())
    return min(MOST_CHOICES, max(choices, default=1))
