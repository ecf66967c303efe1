"""Sources of passages for workflows: the client of a retriever, or an index in this process.

Queries of many sessions share the client's requests. A failure of the server is part of the result, not an exception.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import httpx

from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.files import Row
from verl_mas.environment.retrieval.index import Index, open_index, read_meta
from verl_mas.environment.service import ServiceDown, ServiceFailed, posted, repeated
from verl_mas.errors import ConfigError, DataError, ForeignError, foreign
from verl_mas.util.bodies import TooLong
from verl_mas.util.loops import PerLoop, waited_for
from verl_mas.util.text import bare_address

# Limit of a response: 64 queries with 100 passages of 10,000 characters each. A server that sends more is not a
# retriever.
MAX_RESPONSE_BYTES = 64_000_000


@dataclass(frozen=True)
class SearchResult:
    """The passages of one query, or the `error` that explains why there are none."""

    query: str
    passages: tuple[Passage, ...] = ()
    error: str | None = None


@dataclass
class Breaker:
    """A circuit breaker. After `threshold` consecutive failures, it admits no calls for `cooldown_s` seconds. Then it
    admits one call per `cooldown_s`, to test the server."""

    threshold: int = 5
    cooldown_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    last_failure: str = field(default="", init=False)
    _failures: int = field(default=0, init=False)
    _open_until: float = field(default=0.0, init=False)

    def admits(self) -> bool:
        if self._failures < self.threshold:
            return True
        if self.clock() < self._open_until:
            return False
        self._open_until = self.clock() + self.cooldown_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, failure: str) -> None:
        self.last_failure = failure
        self._failures += 1
        self._open_until = self.clock() + self.cooldown_s


@dataclass(eq=False)
class _Batch:
    """A batch of queries that share a request. A batch takes queries until it is full or `window_s` has passed."""

    queries: list[str] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    results: asyncio.Task[list[SearchResult]] = field(init=False)


@dataclass(eq=False)
class RetrieverClient:
    """Sends the queries of all sessions of an event loop to one `/retrieve` URL."""

    url: str
    topk: int = 3
    timeout_s: float = 30.0
    retries: int = 2
    backoff_s: float = 0.2
    window_s: float = 0.002  # queries that arrive within this time share a request
    max_batch: int = 64
    connections: int = 32
    breaker: Breaker = field(default_factory=Breaker)
    transport: httpx.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=self.connections, max_keepalive_connections=self.connections)
        self._http = httpx.AsyncClient(timeout=self.timeout_s, limits=limits, transport=self.transport, trust_env=False)
        self._shown = bare_address(self.url)  # the URL without a password, for errors that models read and records keep
        self._batches: dict[int, _Batch] = {}  # topk -> the batch that takes queries for this number of passages
        self._sending: set[asyncio.Task[list[SearchResult]]] = set()

    async def search(self, query: str, topk: int | None = None) -> SearchResult:
        """Search for a query. A failure of the server is not raised; it is the `error` of the result."""
        try:
            query.encode()
        except UnicodeEncodeError as error:
            return SearchResult(query, error=f"the query cannot be sent: {error}")
        batch = self._batch(self.topk if topk is None else topk)
        place = len(batch.queries)
        batch.queries.append(query)
        if len(batch.queries) == self.max_batch:
            batch.full.set()
        # Shield the request from a cancellation of this session, because other sessions wait for it.
        return (await asyncio.shield(batch.results))[place]

    async def close(self) -> None:
        await asyncio.gather(*self._sending)
        await self._http.aclose()

    def _batch(self, topk: int) -> _Batch:
        """Return the batch that takes queries for this number of passages."""
        batch = self._batches.get(topk)
        if batch is None or batch.full.is_set():
            batch = self._batches[topk] = _Batch()
            batch.results = asyncio.create_task(self._answer(batch, topk))
            self._sending.add(batch.results)
            batch.results.add_done_callback(self._sending.discard)
        return batch

    async def _answer(self, batch: _Batch, topk: int) -> list[SearchResult]:
        try:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(batch.full.wait(), self.window_s)
        finally:
            batch.full.set()
        try:
            with foreign(ServiceFailed):
                passages = await repeated(lambda: self._retrieve(batch.queries, topk), self.retries, self.backoff_s)
            return [SearchResult(query, tuple(hits)) for query, hits in zip(batch.queries, passages, strict=True)]
        except ServiceFailed as error:
            why = str(error)
        except ForeignError as failed:  # not raised, because every session that waits for the batch gets a result
            why = str(failed)
            self.breaker.failed(why)
        return [SearchResult(query, error=f"{self._shown}: {why}") for query in batch.queries]

    async def _retrieve(self, queries: list[str], topk: int) -> list[list[Passage]]:
        if not self.breaker.admits():
            raise ServiceFailed(f"circuit open after repeated failures, the last: {self.breaker.last_failure}")
        question = {"queries": queries, "topk": topk, "return_scores": True}
        try:
            body = await posted(self._http, self.url, question, 2 * self.timeout_s, MAX_RESPONSE_BYTES)
        except ServiceDown as error:
            self.breaker.failed(str(error))
            raise
        except (ServiceFailed, TooLong) as error:
            self.breaker.succeeded()
            raise ServiceFailed(str(error)) from error
        self.breaker.succeeded()
        return _passages(body, len(queries))


def _passages(body: bytes, queries: int) -> list[list[Passage]]:
    """Parse the passages of a `/retrieve` response, with or without scores."""
    try:
        result = json.loads(body)["result"]
        passages = [[_passage(item, place) for place, item in enumerate(hits)] for hits in result]
    except DataError as error:
        raise ServiceFailed(error.value) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ServiceFailed(f"not a Search-R1 response: {type(error).__name__}: {error}") from error
    if len(passages) != queries:
        raise ServiceFailed(f"{len(passages)} results for {queries} queries")
    return passages


def _passage(item: Row, place: int) -> Passage:
    return replace(Passage.from_row(item.get("document", item), place), score=item.get("score"))


class PassageSource(Protocol):
    async def search(self, query: str) -> SearchResult: ...


class LocalSource:
    """An index in this process, for small corpora and tests."""

    def __init__(self, index: Index, topk: int):
        self._index, self._topk = index, topk

    async def search(self, query: str) -> SearchResult:
        (hits,) = await asyncio.to_thread(self._index.search, [query], self._topk)
        return SearchResult(query, tuple(hits))


_opened = functools.cache(open_index)
_clients = PerLoop[dict[tuple[str, int, float], RetrieverClient]](dict)


def source(where: str, topk: int = 3, timeout_s: float = 30.0) -> PassageSource:
    """Return the source at a URL or in a folder. Sessions of this process share the index of a folder; sessions of an
    event loop share the client of a URL."""
    if "://" not in where:
        return LocalSource(_opened(Path(where).resolve()), topk)
    clients, key = _clients.here(), (where, topk, timeout_s)
    if key not in clients:
        clients[key] = RetrieverClient(*key)
    return clients[key]


def check_source(where: str, topk: int, timeout_s: float = 10.0) -> None:
    """Refuse a source that cannot be used, before training starts. A server gets a query in the same way as in a run,
    so this works for any `/retrieve` server."""
    if "://" not in where:
        read_meta(Path(where))
        return

    async def found() -> SearchResult:
        client = RetrieverClient(where, topk, timeout_s, retries=0)
        try:
            return await client.search("ping")
        finally:
            await client.close()

    if problem := waited_for(found()).error:
        rule = "the retriever of a search team is ready before training starts"
        fix = "start `verl-mas retriever serve --index DIR`, wait until its /ready answers 200, and give its URL, "
        fix += "which ends in /retrieve"
        raise ConfigError(f"the retriever does not serve: {problem}", rule=rule, fix=fix)
