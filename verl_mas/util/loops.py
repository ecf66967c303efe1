"""Helpers for objects that several event loops use in turn, for code without a loop, and for parallel coroutines."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One value per event loop, such as a semaphore or an HTTP client, which asyncio binds to the loop that uses it."""

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def here(self) -> T:
        """Return the value of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
        return self._made[loop]

    def discard(self) -> T | None:
        """Forget the value of the running loop, and return this value, or None if the loop has no value."""
        return self._made.pop(asyncio.get_running_loop(), None)


def waited_for(work: Coroutine[object, object, T], seconds: float | None = None) -> T:
    """Wait for a result in code that is not async, even if the caller runs in an event loop. Raises TimeoutError after
    `seconds`. This limits the whole call, so a server that keeps sending single bytes cannot extend it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asyncio.wait_for(work, seconds)).result()


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return all results, or raise the first failure and cancel the rest."""
    if len(calls) == 1:
        return [await calls[0]()]
    tasks = [asyncio.ensure_future(call()) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
