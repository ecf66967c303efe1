"""Time limits of acts and sessions. An act's clock stands still while it waits for something that is not its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

# Seconds that cancelled work has to end.
GRACE_S = 1.0


class Clock:
    """Counts down from `seconds`, except while it is stopped."""

    def __init__(self, seconds: float):
        self._left, self._since = seconds, time.monotonic()
        self._stops = 0  # of the requests of one act several may wait at the same time

    @property
    def left(self) -> float:
        return self._left if self._stops else self._left - (time.monotonic() - self._since)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._left = self.left
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            self._since = time.monotonic()


_CLOCK: ContextVar[Clock | None] = ContextVar("the clock of the act", default=None)


@contextmanager
def uncounted() -> Iterator[None]:
    """What happens inside takes none of the time of the act that it belongs to, if any."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    with clock.stopped():
        yield


def start(work: Awaitable[T], clock: Clock) -> asyncio.Future[T]:
    """Run `work` in a task whose `uncounted` parts stop the clock."""
    before = _CLOCK.set(clock)
    try:
        return asyncio.ensure_future(work)
    finally:
        _CLOCK.reset(before)


async def ended(task: asyncio.Future[T], clock: Clock) -> bool:
    """Wait; whether the task ended in time. If not, or if the caller is cancelled, it is cancelled.

    A task that swallows the cancellation keeps running.
    """
    try:
        while not task.done() and clock.left > 0:
            await asyncio.wait({task}, timeout=clock.left)
        return task.done()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
