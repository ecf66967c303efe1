"""Fixtures: a policy over verl's own client class with a scripted server, and a worker outside Ray."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from async_tests import pytest_pyfunc_call as pytest_pyfunc_call
from omegaconf import OmegaConf

from verl_mas.config.schema import FaultSpec, MasConfig, PolicySpec, TrajectorySpec
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.verl_ import data_plane
from verl_mas.verl_.types import Fields, Tokenizer
from verl_mas.workflow import Task, Workflow
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.client import LLMClient
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflow.tool_sources import tools_of
from verl_mas.workflow.tools import ToolLike

if TYPE_CHECKING:
    from scripted_engine import Answer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return cast(Tokenizer, byte_tokenizer())


@pytest.fixture
def policy(tokenizer: Tokenizer) -> Callable[..., Any]:
    """Return a function that makes a VerlPolicy and its server: `policy(answer)`."""
    from scripted_engine import scripted_policy

    return partial(scripted_policy, tokenizer)


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One event loop, as in a worker, because verl's agent loops keep the loop in which they were made."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def workflow_of() -> Callable[..., type[Workflow]]:
    """Make a workflow class from a function `(task, team) -> Outcome`. A class is returned unchanged."""

    def workflow_of(run: Any, *agents: str) -> type[Workflow]:
        return run if isinstance(run, type) else type("Team", (Workflow,), {"agents": agents, "run": _method(run)})

    return workflow_of


def _method(run: Any) -> Any:
    return lambda self, task, team: run(task, team)


@pytest.fixture
def play(loop: asyncio.AbstractEventLoop, workflow_of: Callable[..., type[Workflow]]) -> Callable[..., SessionResult]:
    """Run a workflow on one policy. If the workflow is a function, its agent is `a`."""
    from verl_mas.workflow.agents import resolve_agents
    from verl_mas.workflow.run import run_session
    from verl_mas.workflow.session import SessionConfig

    def play(
        run: Any,
        client: LLMClient,
        *,
        agents: Mapping[str, Any] | None = None,
        task: Task | None = None,
        tools: Sequence[ToolLike] = (),
        **settings: Any,
    ) -> SessionResult:
        workflow = workflow_of(run, *(agents or "a"))
        found = resolve_agents(workflow().agents, agents or {}, {"main": PolicySpec()})
        config = SessionConfig(found, {"main": client}, tools=tools_of(tools), **settings)
        return loop.run_until_complete(run_session(workflow, task or Task.of("q"), config))

    return play


class Queue:
    """The part of TransferQueue that the worker uses."""

    def __init__(self) -> None:
        self.status: dict[str, list[str]] = defaultdict(list)
        self.rows: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}

    async def async_kv_put(self, key: str, partition_id: str, tag: Fields) -> None:
        self.status[key].append(tag["status"])

    async def async_kv_batch_put(self, keys: list[str], fields: Any, tags: list[Fields], partition_id: str) -> None:
        assert self.status[keys[0].split("_")[0]] == ["running"], "rows come before the end of the task"
        assert len(fields) == len(keys) == len(tags)
        self.rows.update(zip(keys, tags, strict=True))
        for place, key in enumerate(keys):
            self.fields[key] = {name: plain(fields[name][place]) for name in fields.keys()}  # noqa: SIM118


def plain(value: Any) -> object:
    return value.tolist() if hasattr(value, "tolist") else getattr(value, "data", value)


@pytest.fixture
def make(policy: Any, loop: Any, workflow_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A worker outside Ray, its queue, and a function that runs one task."""
    from verl_mas.rollout import worker as module
    from verl_mas.rollout.busy import Lag
    from verl_mas.rollout.counts import SessionCounts
    from verl_mas.rollout.trajectories import TrajectoryWriter

    def make(
        played: Any,
        *,
        faults: FaultSpec | None = None,
        n: int = 3,
        answer: Answer = lambda p, i: "x",
        at_once: int = 64,
    ) -> SimpleNamespace:
        workflow = workflow_of(played, "solver")
        client, server = policy(answer, n=n)
        OmegaConf.update(client.config, "actor_rollout_ref.rollout.val_kwargs.n", n)
        queue = Queue()
        monkeypatch.setattr(data_plane, "tq", queue)
        monkeypatch.setattr(module, "resolve", lambda spec: workflow())
        worker = object.__new__(module.MasAgentLoopWorker)
        faults = faults or FaultSpec(retries=0)
        worker.mas = MasConfig(faults=faults)
        worker.config, worker.models = client.config, {"main": client.model}
        worker.tokenizer, worker.processor = client.model.tokenizer, None
        worker.session_config = SessionConfig(
            resolve_agents(workflow.agents, {}, {"main": PolicySpec()}), {"main": client}, faults=faults
        )
        worker.slots, worker.writer = asyncio.Semaphore(at_once), data_plane.Writer()
        worker.counts, worker.lag = {False: SessionCounts(), True: SessionCounts()}, Lag()
        worker.trajectories = TrajectoryWriter(TrajectorySpec(), tmp_path, "1")
        worker.logged, worker.broken, worker.served = set(), None, {"main": client.client}

        def run(*, verls: bool = False, validate: bool = False, sampling: Fields | None = None, **fields: Any) -> None:
            prompt = {"uid": "u", "agent_name": "mas", "global_steps": 4, "extra_info": {"index": 0}}
            prompt |= {"raw_prompt": [{"role": "user", "content": "q"}], **fields}
            trajectory: Any = {"validate": validate, "step": 4, "sample_index": 0, "rollout_n": 0}
            player: Any = super(module.MasAgentLoopWorker, worker) if verls else worker
            loop.run_until_complete(player._run_prompt(prompt, sampling or {}, trajectory))  # noqa: SLF001

        def counts(validate: bool = False) -> Any:
            return loop.run_until_complete(worker.pop_counts(validate))

        call = loop.run_until_complete
        return SimpleNamespace(
            worker=worker, queue=queue, run=run, counts=counts, server=server, client=client.client, call=call
        )

    return make
