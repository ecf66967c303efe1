"""A policy with scripted replies, latencies and faults, for tests."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_mas.errors import InvalidInput
from verl_mas.workflow.agents import role_of
from verl_mas.workflow.client import Generation, Request, ToolCall
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.task import text_of


@dataclass(frozen=True)
class Calls:
    """A scripted reply that calls tools; `calls` makes it."""

    tool_calls: Sequence[ToolCall]
    text: str = ""


def calls(*called: tuple[str, JsonObject | str], text: str = "") -> Calls:
    """Make a reply that calls tools: `calls(("press", {"button": "red"}))`. Arguments given as text stay unchanged."""
    tool_calls = [
        ToolCall(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False), f"call_{number}")
        for number, (name, given) in enumerate(called)
    ]
    return Calls(tool_calls, text)


Answer = str | Calls
# A text or `calls(...)`; a sequence of these, whose last element repeats; or a function of the request and the branch.
Script = Answer | Sequence[Answer] | Callable[[Request, int], Answer]
Latency = float | Callable[[random.Random], float]
Fault = Callable[[Request], BaseException | None]


class ScriptedLLM:
    """An LLMClient that replies with given texts and tool calls.

    A token is a byte. `requests` lists all requests, `in_flight` counts those without a reply.
    """

    def __init__(
        self, rules: Script | Mapping[str, Script], *, latency: Latency = 0.0, fault: Fault | None = None, seed: int = 0
    ):
        self.rules, self.latency, self.fault = rules, latency, fault
        self.requests: list[Request] = []
        self.in_flight = 0
        self.cancelled = 0
        self._rng = random.Random(seed)
        self._calls: Counter[str] = Counter()

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        self.requests.append(request)
        answers = [self.answer(request, request.branch + number) for number in range(n)]
        seconds = self.latency(self._rng) if callable(self.latency) else self.latency
        self.in_flight += 1
        try:
            if seconds:
                await asyncio.sleep(seconds)
            error = self.fault(request) if self.fault else None
            if error is not None:
                raise error
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        return [_generation(request, answer) for answer in answers]

    def _rule(self, agent: str) -> Script:
        """Find the script by the agent's name or role."""
        if not isinstance(self.rules, Mapping):
            return self.rules
        for name in (agent, role_of(agent)):
            if name in self.rules:
                return self.rules[name]
        value = f"no scripted reply for agent {agent}"
        rule = "the replies name every agent that acts, or its role"
        raise InvalidInput(value, rule=rule, fix=f"add {agent!r}; there are {', '.join(self.rules)}")

    def answer(self, request: Request, branch: int) -> Answer:
        rule = self._rule(request.agent)
        if callable(rule):
            return rule(request, branch)
        if isinstance(rule, str | Calls):
            return rule
        call = self._calls[request.agent]
        self._calls[request.agent] += 1
        return rule[min(call, len(rule) - 1)]


def _generation(request: Request, answer: Answer) -> Generation:
    text, called = (answer, ()) if isinstance(answer, str) else (answer.text, answer.tool_calls)
    sampled = _bytes(text + "".join(f"<{call.name}>{call.arguments}" for call in called))
    continues = request.continues
    new = request.messages[continues.known if continues else 0 :]
    observation = _bytes("".join(f"<{message['role']}>{text_of(message)}" for message in new) + "<assistant>")
    prompt, response, mask, log_probs = observation, list[int](), list[int](), list[float]()
    if continues is not None:
        before = continues.generation
        prompt = [*before.prompt_ids, *before.response_ids, *observation]
        if continues.row is not None:
            prompt = list(before.prompt_ids)
            response = [*before.response_ids, *observation]
            mask = [*before.response_mask, *[0] * len(observation)]
            log_probs = [*(before.log_probs or ()), *[0.0] * len(observation)]
    return Generation(
        text=text,
        stop_reason="completed",
        prompt_ids=prompt,
        response_ids=[*response, *sampled],
        response_mask=[*mask, *[1] * len(sampled)],
        log_probs=[*log_probs, *[-0.5] * len(sampled)],
        sampled=len(sampled),
        temperature=float(request.sampling.get("temperature", 1.0)),
        tool_calls=called,
    )


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "surrogatepass"))
