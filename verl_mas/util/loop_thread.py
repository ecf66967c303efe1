"""An event loop in its own thread. Code without a loop, or in another loop, can run coroutines in it. The coroutines
continue even while no caller waits for them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar, cast

T = TypeVar("T")
_END = object()


class LoopThread:
    """Runs coroutines until `close`, which cancels the coroutines that still run."""

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        """Start a coroutine. Cancelling the returned future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def result(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine, and block until it ends. An interrupt of the caller cancels the coroutine."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    async def aresult(self, coroutine: Coroutine[object, object, T]) -> T:
        return await asyncio.wrap_future(self.start(coroutine))

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of a generator that runs in the loop. Ending the iteration ends the generator."""
        steps = _Steps(items)
        try:
            while (item := self.start(steps.next()).result()) is not _END:
                yield cast(T, item)
        finally:
            self.result(steps.close())

    async def aiterate(self, items: AsyncGenerator[T, None]) -> AsyncIterator[T]:
        steps = _Steps(items)
        try:
            while (item := await asyncio.shield(asyncio.wrap_future(self.start(steps.next())))) is not _END:
                yield cast(T, item)
        finally:
            await self.aresult(steps.close())

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


class _Steps(Generic[T]):
    """Runs the steps of an async generator, one step at a time."""

    def __init__(self, items: AsyncGenerator[T, None]):
        self._items, self._alone = items, asyncio.Lock()
        self._running: asyncio.Task[object] | None = None

    async def next(self) -> T | object:
        async with self._alone:
            self._running = asyncio.current_task()
            return await anext(self._items, _END)

    async def close(self) -> None:
        """Cancel the running step, wait until it has cleaned up, then close the generator, which must not run at that
        time.

        Callers do not cancel the step themselves, because an interrupt can reach a caller before it has the future of
        the step, and a second cancellation would stop the clean-up.
        """
        if self._running is not None:
            self._running.cancel()
        async with self._alone:
            await self._items.aclose()


async def _cancelled(tasks: Iterable[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
