"""A session that programs reach, over a scripted LLM."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from verl_mas.config.schema import AgentSpec, FaultSpec, PolicySpec
from verl_mas.gateway.dialect import Asked, Served
from verl_mas.gateway.session import GatewaySession, Rules
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.session import Session, SessionConfig
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team

AGENTS = ("solver", "critic")


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def asks(*messages: object, model: str = "solver", **how: object) -> Asked:
    """Make a request. A string stands for a message of the user."""
    return Asked(model, [user(each) if isinstance(each, str) else each for each in messages], **how)  # type: ignore[arg-type,misc]


@dataclass
class Opened:
    llm: Any
    session: Session
    gateway: GatewaySession

    async def ask(self, *messages: object, again: bool = False, **how: object) -> Served:
        """Send a request, wait for the reply and receive it."""
        asked = asks(*messages, **how)  # type: ignore[arg-type]
        with self.gateway.exchange(asked, repr(asked).encode(), again=again) as exchange:
            served = await exchange.act
            exchange.delivered = True
        return served

    @property
    def rows(self) -> list[list[str]]:
        """The texts of the acts of each row."""
        return [[reply.text for reply in row.replies] for row in self.session.rows()]

    @property
    def origins(self) -> list[str]:
        return [reply.origin.partition(" ")[0].rstrip(":") for reply in self.session.replies]


@asynccontextmanager
async def opened(
    replies: object = "fine", *, agents: dict[str, AgentSpec] | None = None, max_acts: int = 256, **rules: object
) -> AsyncIterator[Opened]:
    llm = replies if hasattr(replies, "generate") else ScriptedLLM(replies)  # type: ignore[arg-type]
    found = resolve_agents(AGENTS, agents or {}, {"main": PolicySpec()})
    faults = FaultSpec(max_acts=max_acts, retries=0)
    session = Session(Task.of("2 + 2?"), SessionConfig(found, {"main": llm}, faults=faults))
    gateway = GatewaySession(Team(session), AGENTS, Rules(**rules))  # type: ignore[arg-type]
    try:
        yield Opened(llm, session, gateway)
    finally:
        await gateway.close()
        await session.close()


def tools(*names: str) -> Sequence[dict[str, object]]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
