"""An event loop in a thread of its own: code that is not async, and code in any other event loop, can use what runs in
it, and what runs there continues without being waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar, cast

T = TypeVar("T")
_END = object()


class LoopThread:
    """Runs coroutines until `close`, which cancels those that still run."""

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        """Cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def result(self, coroutine: Coroutine[object, object, T]) -> T:
        """Blocks. An interrupt of the caller cancels the coroutine."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    async def aresult(self, coroutine: Coroutine[object, object, T]) -> T:
        return await asyncio.wrap_future(self.start(coroutine))

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of a generator that runs in the loop. Ending the iteration ends the generator."""
        alone = asyncio.Lock()
        try:
            while (item := self.result(_next(items, alone))) is not _END:
                yield cast(T, item)
        finally:
            self.result(_closed(items, alone))

    async def aiterate(self, items: AsyncGenerator[T, None]) -> AsyncIterator[T]:
        alone = asyncio.Lock()
        try:
            while (item := await self.aresult(_next(items, alone))) is not _END:
                yield cast(T, item)
        finally:
            await self.aresult(_closed(items, alone))

    def close(self) -> None:
        if self.running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancelled(asyncio.all_tasks(self._loop)))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _next(items: AsyncGenerator[T, None], alone: asyncio.Lock) -> T | object:
    async with alone:
        return await anext(items, _END)


async def _closed(items: AsyncGenerator[T, None], alone: asyncio.Lock) -> None:
    """A generator that runs cannot be closed, and one whose step was cancelled runs until it has cleaned up."""
    async with alone:
        await items.aclose()


async def _cancelled(tasks: Iterable[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
