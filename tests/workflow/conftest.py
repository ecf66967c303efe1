"""A session of any workflow over a scripted LLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from verl_mas.config.schema import AgentSpec, FaultSpec, PolicySpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task, Workflow
from verl_mas.workflow.members import members_of
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import Scorer, SessionConfig, SessionResult


def _run(
    workflow: Callable[[], Workflow],
    llm: ScriptedLLM,
    *,
    task: Task | None = None,
    agents: Mapping[str, AgentSpec] | None = None,
    policies: Mapping[str, PolicySpec] | None = None,
    score: Scorer | None = None,
    **settings: Any,
) -> SessionResult:
    settings.setdefault("faults", FaultSpec(backoff_s=0.0))
    policies = policies or {"main": PolicySpec()}
    config = SessionConfig(
        members=members_of(workflow().agents, agents or {}, policies),
        clients=dict.fromkeys(policies, llm),
        **settings,
    )
    return asyncio.run(run_session(workflow, task or Task.of("2 + 2?"), config, score))


@pytest.fixture
def run() -> Callable[..., SessionResult]:
    return _run
