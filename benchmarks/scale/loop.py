"""An event loop in which waiting takes no time.

It shows the CPU time of a worker with thousands of sessions, and how late the worker is, without the hours of waiting
for engines.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that skips waits. Its clock is the CPU time of this process plus the skipped waits.

    So other programs do not change its measurements. It really waits for threads and for calls of other processes.
    """

    def __init__(self) -> None:
        self.skipped, self.outside = 0.0, 0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return time.process_time() + self.skipped

    def run_in_executor(self, executor: Executor | None, function: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = super().run_in_executor(executor, function, *args)
        self.outside += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, future: object) -> None:
        self.outside -= 1

    def waited_for(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Wrap a call that another process answers, so that the loop really waits for the answer."""

        @functools.wraps(call)
        async def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            self.outside += 1
            try:
                return await call(*args, **kwargs)
            finally:
                self.outside -= 1

        return counted


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedLoop):
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.outside or timeout is None:
            return super().select(timeout)
        self._loop.skipped += timeout
        return []
