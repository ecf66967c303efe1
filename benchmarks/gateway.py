"""What a request to the gateway costs a worker, against an act of a native workflow with the same prompts and replies.

    python -m benchmarks.gateway [--sessions 1,64,512] [--turns 8] [--prompt 32000]

The clients are in a process of their own. Every session is a conversation whose first message has so many characters,
and each turn sends the whole transcript. The cost is the processor time of the worker per act.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from statistics import quantiles
from urllib.parse import urlsplit

import psutil

from verl_mas.config.schema import FaultSpec, PolicySpec
from verl_mas.gateway.server import served
from verl_mas.gateway.session import GatewaySession, Rules
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow.members import members_of
from verl_mas.workflow.session import Session, SessionConfig
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team

AGENTS = ("solver",)
REPLY, NEXT = "reply " * 40, "Try again."
BEAT_S = 0.005


def opened(llm: ScriptedLLM) -> Session:
    members = members_of(AGENTS, {}, {"main": PolicySpec()})
    return Session(Task.of("q"), SessionConfig(members, {"main": llm}, faults=FaultSpec()))


async def native(sessions: int, turns: int, prompt: str) -> None:
    async def one() -> None:
        conversation = Team(opened(ScriptedLLM(REPLY))).solver.conversation()
        await conversation.act(prompt)
        for _ in range(turns - 1):
            await conversation.act(NEXT)

    await asyncio.gather(*(one() for _ in range(sessions)))


async def through_the_gateway(sessions: int, turns: int, prompt: int) -> tuple[list[float], float]:
    """The lags of the loop, and the bytes of an open session."""
    before = psutil.Process().memory_info().rss
    async with AsyncExitStack() as stack:
        each = [GatewaySession(Team(opened(ScriptedLLM(REPLY))), AGENTS, Rules()) for _ in range(sessions)]
        addresses = [await stack.enter_async_context(served(session)) for session in each]
        command = [sys.executable, "-m", "benchmarks.gateway", "--client", addresses[0]]
        command += ["--turns", str(turns), "--prompt", str(prompt)]
        client = await asyncio.create_subprocess_exec(*command, stdin=-1)
        lags: list[float] = []
        beating = asyncio.ensure_future(beat(lags))
        await client.communicate(json.dumps([session.key for session in each]).encode())
        beating.cancel()
        assert all(session.fault is None and len(session.replies) == turns for session in each)
        return lags, (psutil.Process().memory_info().rss - before) / sessions


async def beat(lags: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(BEAT_S)
        lags.append(time.perf_counter() - started - BEAT_S)


async def ask(address: str, keys: list[str], turns: int, prompt: str) -> None:
    """The clients, which speak as little HTTP as they can."""
    host, port = urlsplit(address).hostname, urlsplit(address).port

    async def one(key: str) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        messages = [{"role": "user", "content": prompt}]
        for _ in range(turns):
            body = json.dumps({"model": "solver", "messages": messages}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(headers.partition("content-length: ")[2].partition("\r")[0])
            reply = json.loads(await reader.readexactly(length))["choices"][0]["message"]
            messages += [reply, {"role": "user", "content": NEXT}]
        writer.close()

    await asyncio.gather(*map(one, keys))


def cost(work: object, acts: int) -> tuple[float, object]:
    """Milliseconds of this process per act."""
    started = time.process_time()
    result = asyncio.run(work)  # type: ignore[arg-type]
    return 1000 * (time.process_time() - started) / acts, result


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--sessions", default="1,64,512")
    command.add_argument("--turns", type=int, default=8)
    command.add_argument("--prompt", type=int, default=32_000)
    command.add_argument("--client")
    options = command.parse_args()
    prompt = "a" * options.prompt
    if options.client:
        asyncio.run(ask(options.client, json.load(sys.stdin), options.turns, prompt))
        return
    print("sessions  native ms/act  gateway ms/act  more  lag p99 ms  kB/session")
    for sessions in map(int, options.sessions.split(",")):
        acts = sessions * options.turns
        direct, _ = cost(native(sessions, options.turns, prompt), acts)
        gateway, found = cost(through_the_gateway(sessions, options.turns, options.prompt), acts)
        lags, size = found  # type: ignore[misc]
        late = 1000 * quantiles(lags, n=100)[-1]
        print(f"{sessions:8} {direct:14.2f} {gateway:15.2f} {gateway - direct:5.2f} {late:11.1f} {size / 1000:11.0f}")


if __name__ == "__main__":
    main()
