"""A policy over verl's own client class, whose server is a script."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from async_tests import pytest_pyfunc_call as pytest_pyfunc_call
from omegaconf import DictConfig, OmegaConf

from verl_mas import data_plane
from verl_mas.config.schema import FaultSpec, MasConfig, PolicySpec, TrajectorySpec
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.verl_.types import Fields, Tokenizer
from verl_mas.workflow import Task, Workflow
from verl_mas.workflow.client import LLMClient
from verl_mas.workflow.members import members_of
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflow.tool_sources import tools_of
from verl_mas.workflow.tools import ToolLike

# Of the prompt's text and the number of the call; None: no token.
Answer = Callable[[str, int], "str | None"]


class Server:
    """What verl's client sees as a Ray handle. Answers with the tokens of a text; each has log-prob -0.25."""

    def __init__(self, tokenizer: Tokenizer, answer: Answer, latency: float = 0.0):
        self.tokenizer, self.answer, self.latency = tokenizer, answer, latency
        self.calls: list[Fields] = []
        self.requests: list[str] = []  # the ids that the client asked for
        self.generate = self

    async def remote(self, **kwargs: Any) -> object:
        from verl.workers.rollout.replica import TokenOutput

        self.calls.append(kwargs)
        number = len(self.calls) - 1
        await asyncio.sleep(self.latency)
        prompt = self.tokenizer.decode(kwargs["prompt_ids"])
        text = self.answer(prompt, number)
        ids = [] if text is None else [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        ids = ids[: kwargs["sampling_params"].get("max_tokens", len(ids))]
        return TokenOutput(
            token_ids=ids, log_probs=[-0.25] * len(ids), stop_reason="completed", extra_fields={"global_steps": number}
        )


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return cast(Tokenizer, byte_tokenizer())


def _config(**rollout: Any) -> DictConfig:
    multi_turn = {
        "format": "hermes",
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 1,
        "max_tool_response_length": 64,
        "tool_response_truncate_side": "middle",
    }
    lengths = {"prompt_length": 256, "response_length": 64, "max_model_len": None}
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    section: Fields = {"_target_": "verl.workers.config.RolloutConfig", "name": "fake", **lengths, **sampling}
    section |= {"calculate_log_probs": True, "full_determinism": False}
    validation = {"_target_": "verl.workers.config.SamplingConfig", "temperature": 0, "top_p": 0.9, "top_k": 5}
    section |= {"val_kwargs": validation, "multi_turn": multi_turn, **rollout}
    config = {"actor_rollout_ref": {"rollout": section}, "data": {"apply_chat_template_kwargs": {}}}
    return OmegaConf.create(config)


@pytest.fixture
def policy(tokenizer: Tokenizer) -> Callable[..., Any]:
    """`policy(answer)` is a VerlPolicy and its server."""
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.llm_server import LLMServerClient

    from verl_mas.rollout.verl_client import Model, VerlPolicy

    class Client(LLMServerClient):
        def __init__(self, config: DictConfig, server: Server):
            super().__init__(config)
            self.behind = server

        async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, Any]:
            self.behind.requests.append(request_id)
            return "server", self.behind

        def _release_server(self, server_id: str, request_id: str | None = None) -> None:
            pass

    def make(answer: Answer, *, latency: float = 0.0, **rollout: Any) -> tuple[VerlPolicy, Server]:
        config, server = _config(**rollout), Server(tokenizer, answer, latency)
        client = Client(config, server)
        made = VerlPolicy(config, client, Model(tokenizer, None, "qwen2", {}), RLHFDataset)
        return made, server

    return make


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One event loop, as a worker has: verl's agent loops keep the one they were made in."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def workflow_of() -> Callable[..., type[Workflow]]:
    """The class of a function `(task, team) -> Outcome`; a class stays."""

    def workflow_of(run: Any, *agents: str) -> type[Workflow]:
        return run if isinstance(run, type) else type("Team", (Workflow,), {"agents": agents, "run": _method(run)})

    return workflow_of


def _method(run: Any) -> Any:
    return lambda self, task, team: run(task, team)


@pytest.fixture
def play(loop: asyncio.AbstractEventLoop, workflow_of: Callable[..., type[Workflow]]) -> Callable[..., SessionResult]:
    """Run a workflow on one policy; the agent of one that is a function is `a`."""
    from verl_mas.workflow.members import members_of
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
        members = members_of(workflow().agents, agents or {}, {"main": PolicySpec()})
        config = SessionConfig(members, {"main": client}, tools=tools_of(tools), **settings)
        return loop.run_until_complete(run_session(workflow, task or Task.of("q"), config))

    return play


class Queue:
    """TransferQueue as the worker uses it."""

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
    from verl_mas.rollout.counts import SessionCounts
    from verl_mas.rollout.lag import Lag
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
            members_of(workflow.agents, {}, {"main": PolicySpec()}), {"main": client}, faults=faults
        )
        worker.slots, worker.writer = asyncio.Semaphore(at_once), data_plane.Writer()
        worker.counts, worker.lag = {False: SessionCounts(), True: SessionCounts()}, Lag()
        worker.trajectories = TrajectoryWriter(TrajectorySpec(), tmp_path, "1")
        worker.logged, worker.broken, worker.distillation_enabled = set(), None, False

        def run(*, validate: bool = False, sampling: Fields | None = None, **fields: Any) -> None:
            prompt = {"uid": "u", "agent_name": "mas", "global_steps": 4, "extra_info": {"index": 0}}
            prompt |= {"raw_prompt": [{"role": "user", "content": "q"}], **fields}
            trajectory: Any = {"validate": validate, "step": 4, "sample_index": 0, "rollout_n": 0}
            loop.run_until_complete(worker._run_prompt(prompt, sampling or {}, trajectory))

        def counts(validate: bool = False) -> Any:
            return loop.run_until_complete(worker.pop_counts(validate))

        call = loop.run_until_complete
        return SimpleNamespace(
            worker=worker, queue=queue, run=run, counts=counts, server=server, client=client.client, call=call
        )

    return make
