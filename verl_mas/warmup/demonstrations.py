"""What a tiny model is warmed up on: the acts of a whole team, with an expert in place of every agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_mas.config.schema import FaultSpec
from verl_mas.warmup.tiny_model import TURN_END
from verl_mas.workflow import Generation, Message, Request, Task, Workflow
from verl_mas.workflow.run import run

# What an expert says when it is asked.
Say = Callable[[Request], str]


@dataclass(frozen=True)
class Lesson:
    """One act: what the agent is shown, and what it should say."""

    agent: str
    prompt: str
    reply: str


def acted(workflow: Workflow, task: Task, say: Say) -> list[Lesson]:
    """Every act of one session, with the prompts that the workflow gives to a model."""
    session = run(workflow, task, _Expert(say), faults=FaultSpec(retries=0))
    return [Lesson(reply.agent, bare(reply.messages), reply.text) for reply in session.replies]


def bare(messages: Sequence[Message]) -> str:
    """The messages as the template of a warmed-up model has them."""
    return "".join(message["content"] + TURN_END * (message["role"] == "assistant") for message in messages)


class _Expert:
    def __init__(self, say: Say):
        self._say = say

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        return [Generation(self._say(request)) for _ in range(n)]
