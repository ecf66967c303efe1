"""Measure many concurrent sessions in a worker whose engines only wait: makespan, lag of its loop, memory per session.

    python -m benchmarks.scale.sessions [--sessions 1k,4k] [--waiting 1k] [--prompt 600]

The worker, its clients of all policies, TransferQueue and the session records are real, but run outside Ray. In every
session three of eight agents act in turn. The length of a reply is log-normal (median 800 tokens, sigma 0.8, at most
8,192). An engine takes 25 ms per token, for any number of concurrent requests. Waits are skipped, so the worker's clock
is its processor time plus the skipped waits. The loop, the tokenizer and the records share one core.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import transfer_queue as tq
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerFast
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from benchmarks.scale.curve import memory, ratio, show, sizes
from benchmarks.scale.loop import SimulatedLoop
from benchmarks.scale.queue import Queue, queue
from benchmarks.scale.team import ACTS, composed, tokens_of
from verl_mas.config.run import Run
from verl_mas.rollout.busy import Lag
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.team_client import TeamClient
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.rollout.verl_client import Model, VerlPolicy
from verl_mas.rollout.worker import MasAgentLoopWorker, collect_between_steps
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.verl_ import data_plane
from verl_mas.workflow import clock
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.session import SessionConfig

TOKEN_S, BEAT_S = 0.025, 0.1
GROUP = 8  # sessions of a task
FOREVER = 1e7
LIBRARY = Path(sysconfig.get_path("stdlib"), "typing.py").read_text()


def tokenizer_of() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 2,048 tokens. Python caches only integers up to 256, so most token ids are separate objects
    wherever they occur, as with a large vocabulary."""
    return byte_tokenizer([LIBRARY], vocabulary=2048, max_length=10**6)


class Engines:
    """A stand-in for all servers of all policies: it waits, then replies with random tokens."""

    def __init__(self, loop: SimulatedLoop, vocabulary: int, act_s: Callable[[bool], float] | None):
        self.loop, self.vocabulary, self.act_s = loop, vocabulary, act_s
        self.rng = np.random.default_rng(0)
        self.calls = self.out = 0
        self.late: list[float] = []
        self.session_s: dict[str, float] = defaultdict(float)
        self.generate = self

    async def remote(self, request_id: str, prompt_ids: list[int], **settings: object) -> TokenOutput:
        session = request_id.rpartition("_member")[0]
        count = tokens_of(f"{session}/{self.calls}")
        seconds = TOKEN_S * count if self.act_s is None else self.act_s(session not in self.session_s)
        self.calls += 1
        self.out += 1
        due = self.loop.time() + seconds
        try:
            await asyncio.sleep(seconds)
        finally:
            self.out -= 1
        self.late.append(self.loop.time() - due)
        self.session_s[session] += seconds
        ids = self.rng.integers(300, self.vocabulary, count).tolist()
        log_probs = (-self.rng.random(count)).tolist()
        return TokenOutput(
            token_ids=ids, log_probs=log_probs, stop_reason="completed", extra_fields={"global_steps": 0}
        )


class Client(LLMServerClient):  # type: ignore[misc]
    """verl's client without its load balancer: every request goes to the stand-in for the servers."""

    def __init__(self, config: DictConfig, engines: Engines):
        super().__init__(config)
        self.engines = engines

    async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, Any]:
        return request_id, SimpleNamespace(generate=SimpleNamespace(remote=_named(self.engines, request_id)))

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Do nothing, because there is no load balancer to inform."""


class OfTeam(TeamClient, Client):
    """The same client, combined with the class that a team's worker uses."""


def _named(engines: Engines, request_id: str) -> Callable[..., Any]:
    return lambda **given: engines.remote(**{**given, "request_id": request_id})


class Rollout:
    """A worker that plays `sessions` sessions at the same time, eight per task."""

    def __init__(self, loop: SimulatedLoop, run: Run, folder: str, *, sessions: int, act_s: Any = None):
        self.loop, self.sessions = loop, sessions
        tokenizer = tokenizer_of()
        self.engines = Engines(loop, len(tokenizer), act_s)
        worker = self.worker = object.__new__(MasAgentLoopWorker)
        worker.run, worker.mas, worker.config = run, run.mas, run.config
        worker.models = dict.fromkeys(run.mas.policies, Model(tokenizer, None, "qwen2", {}))
        worker.tokenizer, worker.processor = tokenizer, None
        client = OfTeam(run.config, self.engines)
        clients = {
            name: VerlPolicy(run.view(name).config, client, model, RLHFDataset) for name, model in worker.models.items()
        }
        worker.session_config = SessionConfig(agents_of(run.mas), clients, faults=run.mas.faults)
        worker.slots, worker.writer = asyncio.Semaphore(sessions), data_plane.Writer()
        worker.counts, worker.lag = {False: SessionCounts(), True: SessionCounts()}, Lag()
        worker.trajectories = TrajectoryWriter(run.mas.trajectories, folder, "1")
        worker.logged, worker.broken, worker.served = set(), None, dict.fromkeys(clients, client)
        collect_between_steps()
        self.beats: list[float] = []
        self.first_row = 0.0

    async def play(self, prompt: int) -> float:
        """Run until all sessions have ended and return the seconds. `prompt`: tokens of a task's question."""
        text = LIBRARY[: round(prompt * 3.6)]
        begin = self.loop.time()
        heart = asyncio.ensure_future(self._beat())
        await asyncio.gather(*(self._task(number, f"{number} {text}") for number in range(self.sessions // GROUP)))
        heart.cancel()
        return self.loop.time() - begin

    async def _task(self, number: int, question: str) -> None:
        prompt = {"uid": f"1-{number}", "agent_name": "mas", "global_steps": 1, "extra_info": {"index": number}}
        prompt |= {"raw_prompt": [{"role": "user", "content": question}], "__rollout_n__": GROUP}
        trajectory = {"validate": False, "step": 1, "sample_index": number, "rollout_n": 0}
        await self.worker._run_prompt(prompt, {}, trajectory)  # noqa: SLF001
        self.first_row = self.first_row or self.loop.time()
        if self.worker.broken is not None:
            raise self.worker.broken

    async def _beat(self) -> None:
        while True:
            due = self.loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.beats.append(self.loop.time() - due)


def simulated(work: Callable[[SimulatedLoop], Any]) -> Any:
    """Return the result of `work(loop)` in a loop that skips waits, which the clocks of acts and sessions follow."""
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    watched = {name: loop.waited_for(getattr(tq, name)) for name in ("async_kv_put", "async_kv_batch_put")}
    times = SimpleNamespace(time=loop.time, monotonic=loop.time)
    try:
        # Replace `ray.cancel`, because a request ends with its coroutine and no process has to be informed.
        with patch.multiple(tq, **watched), patch.object(clock, "time", times), patch("ray.cancel"):
            return loop.run_until_complete(work(loop))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def rollout(run: Run, made: Queue, sessions: int, prompt: int) -> dict[str, float]:
    made.take()
    with tempfile.TemporaryDirectory() as folder:

        async def work(loop: SimulatedLoop) -> tuple[Rollout, float, float, SessionCounts]:
            it = Rollout(loop, run, folder, sessions=sessions)
            skipped, begin = loop.skipped, loop.time()
            it.first_row = 0.0
            seconds = await it.play(prompt)
            it.first_row -= begin
            return it, seconds, seconds - (loop.skipped - skipped), await it.worker.pop_counts(False)

        it, seconds, used, counts = simulated(work)
    queue_use, rows = made.take(), sessions * ACTS
    data_plane.clear(
        data_plane.KVBatchMeta(
            partition_id=data_plane.TRAIN,
            keys=list(keys := data_plane.listed(data_plane.TRAIN)),
            tags=[{} for _ in keys],
        )
    )
    assert (counts.sessions, dict(counts.failed)) == (sessions, {}), counts.first_faults
    late, beats = np.array(it.engines.late) * 1e3, np.array(it.beats) * 1e3
    return {
        "makespan / critical path": seconds / max(it.engines.session_s.values()),
        "makespan, s": seconds,
        "first rows, s": it.first_row,
        "lag of a beat, p99, ms": float(np.percentile(beats, 99)),
        "lag of a reply, p99, ms": float(np.percentile(late, 99)),
        "processor of the worker, ms per act": 1e3 * used / rows,
        "controller, us per row": 1e6 * queue_use["controller"] / rows,
        "storage, us per row": 1e6 * queue_use["storage"] / rows,
        "bytes to TransferQueue, kB per row": queue_use["bytes"] / rows / 1e3,
        "records, kB per session": counts.record_bytes / sessions / 1e3,
    }


def waiting(run: Run, sessions: int, prompt: int) -> float:
    """Return the kB of a session that waits in its second act, including the memory of its first act."""
    with tempfile.TemporaryDirectory() as folder:

        async def work(loop: SimulatedLoop) -> float:
            it = Rollout(loop, run, folder, sessions=sessions, act_s=lambda first: 1.0 if first else FOREVER)
            before = resident()
            playing = asyncio.ensure_future(it.play(prompt))
            while it.engines.calls < 2 * sessions or it.engines.out < sessions:
                await asyncio.sleep(10 * BEAT_S)
            kib = (resident() - before) * 1024 / sessions
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            return kib * 1.024

        return float(simulated(work))


def resident() -> float:
    """Return the MiB in use, without the free memory that the allocator keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=sizes, default=sizes("1k,4k"))
    parser.add_argument("--waiting", type=sizes, default=sizes("1k"))
    parser.add_argument("--prompt", type=int, default=600, help="tokens of a task, about")
    given = parser.parse_args(arguments)
    run = Run.of(composed(policies=8))
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    with queue() as made:
        for count in given.sessions:
            for name, value in rollout(run, made, count, given.prompt).items():
                curves[name][count] = value
        memories = {count: waiting(run, count, given.prompt) for count in given.waiting}
    show(f"sessions at once in one worker, {given.prompt} tokens per task", curves)
    show("sessions that wait", {"kB per session": memories})
    last, first = given.sessions[-1], given.sessions[0]
    name = "processor of the worker, ms per act"
    ratio(f"{name}, {last:,} sessions", curves[name][last], f"{first:,}", curves[name][first])


if __name__ == "__main__":
    main()
