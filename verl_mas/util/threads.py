"""Work in threads of its own, whose errors reach whoever waits for it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work` in a thread; the future has its result, or the exception that it raised.

    Not a thread of a pool: work that hangs would keep its place there, and the end of the process would wait for it.
    """
    future = Future[T]()
    future.set_running_or_notify_cancel()  # cancelling whoever waits does not cancel the work

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  boundary: whoever waits raises it
            # A future of an event loop refuses StopIteration, and the others mean something else to a coroutine.
            special = isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit)
            future.set_exception(RuntimeError(repr(error)) if special else error)

    Thread(target=run, name=name, daemon=True).start()
    return future


async def in_thread(work: Callable[[], T], name: str = "tool") -> T:
    """The result of `work`, which may block. If the caller is cancelled, the thread is left to itself."""
    return await asyncio.wrap_future(begun(partial(contextvars.copy_context().run, work), name))
