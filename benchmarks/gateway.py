"""Measure the cost of a request to the gateway, compare it with an act of a native workflow, and with fixed limits.

    python -m benchmarks.gateway [--sessions 1,64,512] [--turns 8] [--pace 5]

Every session is a conversation whose first message has 8,000 tokens, and each turn sends the whole transcript. The
engine replies at once. Each measurement runs, after a warm-up, in a separate process on one core; its clients are in
another process on another core. All sessions take their turns at the same time. The cost of a turn is the processor
time of the worker between its requests to the engine, and the script prints the median over turns. It measures the lag
of the event loop once in this way, and once at a realistic rate: a request per session every `pace` seconds on average.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles
from urllib.parse import urlsplit

import psutil

from verl_mas.config.schema import FaultSpec, PolicySpec
from verl_mas.gateway.server import served
from verl_mas.gateway.session import GatewaySession, Rules
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.client import Generation, Request
from verl_mas.workflow.session import Session, SessionConfig
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team

AGENTS = ("solver",)
PROMPT = 'the "answer" is\n' * 2000  # 8,000 tokens, 4 characters each
REPLY, NEXT = "reply " * 40, "Try again."
OBSERVED, SAMPLED = 20, 60  # tokens per turn
LEAST_ACTS = 200  # A measurement repeats small groups of sessions until it has about this many acts.
BEAT_S = 0.02
MOST_MS, MOST_LAG_MS, MOST_KB = 1.0, 20.0, 100.0
COMMAND = [sys.executable, "-m", "benchmarks.gateway"]
CORES = sorted(os.sched_getaffinity(0))


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


class Engine:
    """An engine that replies immediately, with token arrays of the types that verl's policies use."""

    def __init__(self) -> None:
        self.prompt = array("i", range(len(PROMPT) // 4))
        self.clock: list[float] = []  # processor time at each request

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        self.clock.append(time.process_time())
        before = request.continues.generation if request.continues else None
        observed = OBSERVED if before else 0
        ids = array("i", range(observed + SAMPLED))
        mask = array("b", [*[0] * observed, *[1] * SAMPLED])
        log_probs = array("d", [-0.5] * len(ids))
        return [
            Generation(
                REPLY,
                "completed",
                prompt_ids=self.prompt[:],
                response_ids=before.response_ids + ids if before else ids,  # type: ignore[operator]
                response_mask=before.response_mask + mask if before else mask,  # type: ignore[operator]
                log_probs=before.log_probs + log_probs if before else log_probs,  # type: ignore[operator]
                sampled=SAMPLED,
                temperature=1.0,
            )
        ]


def opened(engine: Engine, count: int) -> list[Session]:
    agents = resolve_agents(AGENTS, {}, {"main": PolicySpec()})
    config = SessionConfig(agents, {"main": engine}, faults=FaultSpec())
    return [Session(Task.of("q"), config) for _ in range(count)]


@dataclass(frozen=True)
class Load:
    """A load of `together` sessions at the same time. Further groups follow until there are about LEAST_ACTS acts."""

    together: int
    turns: int
    pace: float = 0.0

    @property
    def sessions(self) -> int:
        return self.together * max(1, LEAST_ACTS // (self.together * self.turns))

    async def run(self, one: Callable[[int, int], Awaitable[object]]) -> None:
        """Await `one(session, turn)` for every turn of every session."""
        for first in range(0, self.sessions, self.together):
            group = range(first, first + self.together)
            if self.pace:
                await asyncio.gather(*(self._paced(one, session) for session in group))
                continue
            for turn in range(self.turns):
                await asyncio.gather(*(one(session, turn) for session in group))

    async def _paced(self, one: Callable[[int, int], Awaitable[object]], session: int) -> None:
        for turn in range(self.turns):
            await asyncio.sleep(random.uniform(0, 2 * self.pace))
            await one(session, turn)


async def direct(sessions: list[Session], load: Load) -> Numbers:
    conversations = [Team(session).solver.conversation() for session in sessions]
    # Make a separate string for each session, because strings that arrive through connections share no memory.
    await load.run(lambda session, turn: conversations[session].act(NEXT if turn else f"{session}{PROMPT}"))
    return Numbers(_size())


async def gateway(sessions: list[Session], load: Load) -> Numbers:
    async with AsyncExitStack() as stack:
        each = [GatewaySession(Team(session), AGENTS, Rules()) for session in sessions]
        addresses = [await stack.enter_async_context(served(session)) for session in each]
        command = [*COMMAND, "--client", addresses[0], *load_options(load)]
        client = await asyncio.create_subprocess_exec(*command, stdin=-1, preexec_fn=lambda: pin(CORES[-1]))
        lags: list[float] = []
        beating = asyncio.ensure_future(_beat(lags))
        await client.communicate(json.dumps([session.key for session in each]).encode())
        beating.cancel()
        assert all(session.fault is None for session in each)
        assert all(len(session.replies) == load.turns and len(session.rows()) == 1 for session in sessions)
        return Numbers(_size(), lags)


WAYS: dict[str, Callable[[list[Session], Load], Awaitable[Numbers]]] = {"direct": direct, "gateway": gateway}


@dataclass(frozen=True)
class Numbers:
    """The kilobytes of the process while its sessions are open, and the lags of its event loop in seconds."""

    size: float
    lags: list[float] = field(default_factory=list)


def _size() -> float:
    gc.collect()
    # Return free memory to the system. malloc keeps it for later requests, so it belongs to no session.
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss) / 1000


async def _beat(lags: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(BEAT_S)
        lags.append(time.perf_counter() - started - BEAT_S)


async def measured(way: str, load: Load) -> dict[str, float]:
    """Measure in this process: milliseconds per act, the lag of the loop and the kilobytes of a session."""
    warm = Load(1, load.turns)
    await WAYS[way](opened(Engine(), warm.sessions), warm)
    before, engine = _size(), Engine()
    sessions = opened(engine, load.sessions)
    found = await WAYS[way](sessions, load)
    costs = [1000 * (end - begin) / load.together for begin, end in pairwise(engine.clock[:: load.together])]
    late = 1000 * quantiles(found.lags, n=100)[-1] if found.lags else 0.0
    return {"ms": median(costs), "lag": late, "kB": (found.size - before) / len(sessions)}


async def ask(address: str, keys: list[str], load: Load) -> None:
    """Run the clients. They write HTTP directly on their connections, which costs little time."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    histories = [[{"role": "user", "content": PROMPT}] for _ in keys]
    connections = [await asyncio.open_connection(host, port) for _ in keys]

    async def one(session: int, turn: int) -> None:
        (reader, writer), messages = connections[session], histories[session]
        body = json.dumps({"model": "solver", "messages": messages}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {keys[session]}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(headers.partition("content-length: ")[2].partition("\r")[0])
        reply = json.loads(await reader.readexactly(length))["choices"][0]["message"]
        messages += [reply, {"role": "user", "content": NEXT}]

    await load.run(one)


def load_options(load: Load) -> list[str]:
    return ["--sessions", str(load.together), "--turns", str(load.turns), "--pace", str(load.pace)]


def fresh(way: str, load: Load) -> dict[str, float]:
    """Measure in a new process."""
    ran = subprocess.run([*COMMAND, "--way", way, *load_options(load)], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def against(value: float, limit: float) -> str:
    return f"{value:.3g} of at most {limit:g}: {value / limit:.2f}x"


def report(counts: list[int], turns: int, pace: float) -> None:
    print("sessions  direct ms/act  gateway ms/act  ratio  more ms/act, median  lag p99 ms, all at once")
    for count in counts:
        load = Load(count, turns)
        native, through = fresh("direct", load), fresh("gateway", load)
        more = against(through["ms"] - native["ms"], MOST_MS)
        ratio = through["ms"] / native["ms"]
        row = f"{count:8} {native['ms']:14.3f} {through['ms']:15.3f} {ratio:6.1f}  {more:>26}  {through['lag']:.0f}"
        print(row, flush=True)
    size = through["kB"] - native["kB"]
    print(f"kB per open session, {count} sessions, beside a native one of {native['kB']:.0f}: {against(size, MOST_KB)}")
    lag = fresh("gateway", Load(count, turns, pace))["lag"]
    print(f"lag p99 in ms, {count} sessions with an act each {pace:g} s: {against(lag, MOST_LAG_MS)}")


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--sessions", default="1,64,512")
    command.add_argument("--turns", type=int, default=8)
    command.add_argument("--pace", type=float, default=5.0)
    command.add_argument("--way", choices=list(WAYS))
    command.add_argument("--client")
    options = command.parse_args()
    counts = [int(count) for count in options.sessions.split(",")]
    load = Load(counts[0], options.turns, options.pace)
    if options.client:
        keys = json.load(sys.stdin)
        asyncio.run(ask(options.client, keys, load))
    elif options.way:
        pin(CORES[0])
        print(json.dumps(asyncio.run(measured(options.way, load))))
    else:
        report(counts, options.turns, options.pace)


if __name__ == "__main__":
    main()
