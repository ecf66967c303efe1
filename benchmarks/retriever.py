"""Measure the retriever on one machine: build, many clients, agreement with tantivy's query parser, async rollouts.

python benchmarks/retriever.py --passages 100000 --clients 64
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import tantivy

from verl_mas.environment.retrieval.client import RetrieverClient
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.index import build, open_index
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflow.run import arun
from verl_mas.workflows.search_team import SearchTeam

WORDS_PER_PASSAGE, WORDS_PER_QUERY, VOCABULARY = 60, 8, 50_000


def corpus(count: int, rng: random.Random) -> list[Passage]:
    """Make passages of random words whose frequencies follow Zipf's law, as in real texts."""
    words = [f"w{number:x}" for number in range(VOCABULARY)]
    weights = [1 / rank for rank in range(1, VOCABULARY + 1)]
    drawn = iter(rng.choices(words, weights, k=count * WORDS_PER_PASSAGE))
    return [Passage(str(n), " ".join(next(drawn) for _ in range(WORDS_PER_PASSAGE))) for n in range(count)]


def questions(passages: list[Passage], count: int, rng: random.Random) -> list[str]:
    return [" ".join(rng.sample(rng.choice(passages).text.split(), WORDS_PER_QUERY)) for _ in range(count)]


@contextlib.contextmanager
def served(index: Path) -> Iterator[str]:
    """Yield the URL of `verl-mas retriever serve` in another process, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(str(index), str(port)), daemon=True)
    process.start()
    base = f"http://127.0.0.1:{port}"
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base}/ready").status_code == 200:
                break
        time.sleep(0.1)
    yield f"{base}/retrieve"
    process.terminate()


def _serve(index: str, port: str) -> None:
    from verl_mas.cli.retriever import main

    main(["serve", "--index", index, "--port", port])


async def load(url: str, queries: list[str], clients: int) -> tuple[float, list[float]]:
    """Query in the worst case, without batches: each client has its own connection and sends one query at a time."""
    waiting = iter(queries)
    seconds = []

    async def client() -> None:
        async with httpx.AsyncClient() as http:
            for query in waiting:
                started = time.perf_counter()
                response = await http.post(url, json={"queries": [query], "topk": 3, "return_scores": True})
                response.raise_for_status()
                seconds.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*[client() for _ in range(clients)])
    return time.perf_counter() - started, seconds


class Counted(httpx.AsyncHTTPTransport):
    requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return await super().handle_async_request(request)


async def batched(url: str, queries: list[str], clients: int) -> tuple[float, int]:
    """Send the same queries with RetrieverClient, which joins concurrent queries into one request."""
    waiting = iter(queries)
    transport = Counted()
    retriever = RetrieverClient(url, transport=transport)

    async def session() -> None:
        for query in waiting:
            assert (await retriever.search(query)).error is None

    started = time.perf_counter()
    await asyncio.gather(*[session() for _ in range(clients)])
    seconds = time.perf_counter() - started
    await retriever.close()
    return seconds, transport.requests


def by_the_library(index: Path, query: str) -> list[tuple[str, float]]:
    """Search with tantivy's own query parser. Return the ids and scores of the hits."""
    engine = tantivy.Index.open(str(index))
    searcher = engine.searcher()
    hits = searcher.search(engine.parse_query(query, ["body"]), 3).hits
    return [(json.loads(bytes(searcher.doc(address)["source"][0]))["id"], score) for score, address in hits]


@contextlib.contextmanager
def slow(delay: float) -> Iterator[str]:
    """Yield the URL of a `/retrieve` server in another process, which takes `delay` seconds per request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=_serve_slowly, args=(port, delay), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{port}/retrieve"
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(url, json={"queries": []})
            break
        time.sleep(0.1)
    yield url
    process.terminate()


def _serve_slowly(port: int, delay: float) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def retrieve(request: Request) -> JSONResponse:
        queries = (await request.json())["queries"]
        await asyncio.sleep(delay)
        return JSONResponse(
            {"result": [[{"document": {"id": "0", "contents": "a fact"}, "score": 1.0}] for _ in queries]}
        )

    app = Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


async def rollouts(url: str, sessions: int) -> tuple[float, float]:
    """Run search sessions with 3 queries each over HTTP.

    Return the seconds if all run at the same time, and the seconds if they run one after another.
    """
    replies = {
        "verifier": "<verify>no</verify>",
        "searcher": "<search>what</search>",
        "answerer": "<answer>x</answer>",
    }
    task = Task([{"role": "user", "content": "?"}], ground_truth="x")

    async def one() -> None:
        session = await arun(SearchTeam(retriever=url), task, ScriptedLLM(replies))
        assert session.info["searches"] == 3, session.info

    started = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(sessions)])
    together = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(sessions):
        await one()
    return together, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--delay", type=float, default=0.2)
    options = parser.parse_args()
    rng = random.Random(0)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    passages = corpus(options.passages, rng)
    queries = questions(passages, options.queries, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        started = time.perf_counter()
        build(passages, path)
        seconds = time.perf_counter() - started
        print(
            f"index: {options.passages} passages in {seconds:.1f} s, {60 / seconds:.1f}x faster than the target of 60 s"
        )
        ours = open_index(path).search(queries[:500], 3)
        same = sum(
            [(hit.id, hit.score) for hit in hits] == by_the_library(path, query)
            for query, hits in zip(queries[:500], ours, strict=True)
        )
        print(f"top-k: {same} of {len(ours)} exactly the library's own, scores included")
        with served(path) as url:
            asyncio.run(load(url, queries[:500], options.clients))
            seconds, each = asyncio.run(load(url, queries, options.clients))
            p99 = statistics.quantiles(each, n=100)[98]
            rate = len(queries) / seconds
            print(
                f"server: {options.clients} clients, one query per request: {rate:.0f} queries/s "
                f"({rate / 300:.1f}x the target of 300/s), p50 {statistics.median(each) * 1e3:.0f} ms, "
                f"p99 {p99 * 1e3:.0f} ms"
            )
            seconds, requests = asyncio.run(batched(url, queries, options.clients))
            print(
                f"client: the same by RetrieverClient: {len(queries) / seconds:.0f} queries/s in {requests} requests, "
                f"{len(queries) / seconds / rate:.1f}x"
            )
    with slow(options.delay) as url:
        together, apart = asyncio.run(rollouts(url, 16))
    print(
        f"rollouts: 16 sessions of 3 searches over HTTP at {options.delay * 1e3:.0f} ms: {together:.2f} s together, "
        f"{apart:.2f} s one after another, {apart / together:.1f}x"
    )


if __name__ == "__main__":
    main()
