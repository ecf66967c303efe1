"""Runs a session of any workflow with a scripted LLM."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from verl_mas.config.schema import AgentSpec, FaultSpec, PolicySpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Outcome, Task, Team, Workflow
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import Scorer, SessionConfig, SessionResult


def _workflow(play: Callable[..., Any]) -> Callable[[], Workflow]:
    """Make a workflow from a coroutine function, with the agent `a` or the default of its parameter `agents`. A class
    is returned unchanged."""
    if not inspect.iscoroutinefunction(play):
        return play

    async def run(self: Workflow, task: Task, team: Team) -> Outcome:
        outcome: Outcome = await play(task, team)
        return outcome

    return type(play.__name__, (Workflow,), {"agents": (play.__defaults__ or (("a",),))[-1], "run": run})


def _run(
    workflow: Callable[..., Any],
    llm: ScriptedLLM,
    *,
    task: Task | None = None,
    agents: Mapping[str, AgentSpec] | None = None,
    policies: Mapping[str, PolicySpec] | None = None,
    score: Scorer | None = None,
    **settings: Any,
) -> SessionResult:
    workflow = _workflow(workflow)
    settings.setdefault("faults", FaultSpec(backoff_s=0.0))
    policies = policies or {"main": PolicySpec()}
    config = SessionConfig(
        agents=resolve_agents(workflow().agents, agents or {}, policies),
        clients=dict.fromkeys(policies, llm),
        **settings,
    )
    return asyncio.run(run_session(workflow, task or Task.of("2 + 2?"), config, score))


@pytest.fixture
def run() -> Callable[..., SessionResult]:
    return _run
