"""Runs work in new threads. Errors reach the caller that waits for the result."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work` in a thread. The returned future gets its result or its exception.

    The thread does not belong to a pool. In a pool, work that hangs would occupy a thread, and the process could not
    exit before this thread ends.
    """
    future = Future[T]()
    future.set_running_or_notify_cancel()  # cancelling a waiting caller does not cancel the work
    Thread(target=settle, args=(future, work), name=name, daemon=True).start()
    return future


def settle(future: Future[T], work: Callable[[], T]) -> None:
    """Run `work`, and give the future its result or its exception."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  boundary: the waiting caller raises it
        # An asyncio future refuses StopIteration, and a coroutine that waits would misread the other exceptions.
        special = isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit | asyncio.CancelledError)
        future.set_exception(RuntimeError(repr(error)) if special else error)


async def in_thread(work: Callable[[], T], name: str = "tool") -> T:
    """Return the result of `work`, which may block. If the caller is cancelled, the thread keeps running."""
    return await asyncio.wrap_future(begun(partial(contextvars.copy_context().run, work), name))
