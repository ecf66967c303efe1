"""Sources of passages for workflows: a server by its URL, or an index in this process by its folder."""

import asyncio
import functools
from pathlib import Path
from typing import Protocol

from verl_mas.environment.retrieval.client import SearchResult, check_reachable, retriever
from verl_mas.environment.retrieval.index import Index, open_index, read_meta


class PassageSource(Protocol):
    async def search(self, query: str) -> SearchResult: ...


class LocalSource:
    """An index in this process, for small corpora and tests."""

    def __init__(self, index: Index, topk: int):
        self._index, self._topk = index, topk

    async def search(self, query: str) -> SearchResult:
        (hits,) = await asyncio.to_thread(self._index.search, [query], self._topk)
        return SearchResult(query, tuple(hits))


def source(where: str, topk: int, timeout_s: float) -> PassageSource:
    """Return the source at a URL or in a folder. Sessions of this process share the index of a folder; sessions of an
    event loop share the client of a URL."""
    if is_url(where):
        return retriever(where, topk, timeout_s)
    return LocalSource(_opened(str(Path(where).resolve())), topk)


def check_source(where: str, topk: int) -> None:
    """Refuse a source that cannot be used, before training starts."""
    if is_url(where):
        check_reachable(where, topk)
    else:
        read_meta(Path(where))


def is_url(where: str) -> bool:
    return "://" in where


@functools.cache
def _opened(folder: str) -> Index:
    return open_index(folder)
