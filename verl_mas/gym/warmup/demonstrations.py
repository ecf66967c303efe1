"""Demonstrations for warming up a tiny model: the acts of a team whose agents are scripted experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_mas.config.schema import FaultSpec
from verl_mas.testing.tiny_model import TURN_END
from verl_mas.workflow import Generation, Message, Request, Task, Workflow
from verl_mas.workflow.run import run

# The reply of an expert to a request.
Expert = Callable[[Request], str]


@dataclass(frozen=True)
class Lesson:
    """One act: the prompt, and the reply to learn."""

    agent: str
    prompt: str
    reply: str


def demonstrate(workflow: Workflow, task: Task, expert: Expert) -> list[Lesson]:
    """The acts of one session, with the workflow's own prompts and the expert's replies."""
    session = run(workflow, task, _ExpertClient(expert), faults=FaultSpec(retries=0))
    return [Lesson(reply.agent, bare(reply.messages), reply.text) for reply in session.replies]


def bare(messages: Sequence[Message]) -> str:
    """The messages as a warmed-up model's chat template formats them."""
    return "".join(message["content"] + TURN_END * (message["role"] == "assistant") for message in messages)


class _ExpertClient:
    def __init__(self, expert: Expert):
        self._expert = expert

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        return [Generation(self._expert(request)) for _ in range(n)]
