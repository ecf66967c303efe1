"""An event loop in which waiting takes no time: what a worker of thousands of sessions takes of its processor, and how
late it is, without the hours that engines take."""

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
    """Its clock is the processor time of this process plus the waits that were skipped, so other programs do not change
    what it measures. Work in threads, and calls of another process, are waited for."""

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
        """A call that another process answers."""

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
