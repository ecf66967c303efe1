"""Time limits of acts, sessions and tool calls. The clock of an act stops while its tools run, and all clocks stop
while an engine accepts no requests."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from verl_mas.errors import WorkflowError, is_interrupt

T = TypeVar("T")

GRACE_S = 1.0  # seconds that `ended` waits for cancelled work
STANDING_S = 0.05  # minimum wait between checks of a stopped clock


_WALL = time.time() - time.monotonic()


def now() -> float:
    """Return the wall-clock time, computed from the monotonic clock and the wall clock at the start of this process. So
    durations cannot become negative if the wall clock is set back."""
    return _WALL + time.monotonic()


class Clock:
    """Counts down from `seconds`, except while it is stopped."""

    def __init__(self, seconds: float):
        self._left, self._since = seconds, time.monotonic()
        self._stops = 0  # a count, because several requests of one act may wait at the same time

    @property
    def left(self) -> float:
        return self._left if self._stops else self._left - (time.monotonic() - self._since)

    @property
    def next_look(self) -> float:
        return max(self._left, STANDING_S) if self._stops else self.left

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
# All running clocks in the current context: the clocks of the session, the act and the tool call.
_CLOCKS: ContextVar[tuple[Clock, ...]] = ContextVar("the clocks that run", default=())


@contextmanager
def uncounted() -> Iterator[None]:
    """Stop the clock of the current act or tool call, if there is one, for the enclosed code. The clock of the session
    continues."""
    clock = _CLOCK.get()
    with nullcontext() if clock is None else clock.stopped():
        yield


@contextmanager
def held() -> Iterator[None]:
    """Stop the clocks of the current tool call, act and session for the enclosed code."""
    with ExitStack() as stack:
        for clock in _CLOCKS.get():
            stack.enter_context(clock.stopped())
        yield


def start(work: Awaitable[T], clock: Clock, *, session: bool = False) -> asyncio.Future[T]:
    """Run `work` in a task. `clock` stops while code of `work` runs within `held()` and, unless `session` is set, also
    while code of `work` runs within `uncounted()`."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_task)
    act = _CLOCK.set(None if session else clock)
    every = _CLOCKS.set((*_CLOCKS.get(), clock))
    try:
        return asyncio.ensure_future(work)
    finally:
        _CLOCKS.reset(every)
        _CLOCK.reset(act)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Task factory of the event loop. In all tasks of a session, including tasks that the workflow starts, SystemExit
    and KeyboardInterrupt end only the session."""
    return asyncio.Task(ends_alone(work) if _CLOCKS.get() else work, loop=loop, **options)


async def ends_alone(work: Awaitable[T]) -> T:
    """Convert SystemExit and KeyboardInterrupt of `work` to a WorkflowError, because they would end the event loop and
    so all sessions. An interrupt by the user is raised unchanged."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        if is_interrupt(error):
            raise
        value = f"a session raised {error!r}"
        fix = "raise an exception to drop the session, or return Outcome(reward=0)"
        raise WorkflowError(value, rule="a workflow ends one session, not the process", fix=fix) from error


def work_of(task: asyncio.Task[T]) -> object:
    """Return the coroutine that a task runs. If `ends_alone` wraps it, return the inner coroutine."""
    work = task.get_coro()
    if inspect.iscoroutine(work) and work.cr_code is ends_alone.__code__:
        return inspect.getcoroutinelocals(work).get("work", work)
    return work


async def ended(task: asyncio.Future[T], clock: Clock) -> bool:
    """Wait until the task ends or the clock runs out, and return whether it ended in time. If not, or if the caller is
    cancelled, the task is cancelled.

    A task that swallows the cancellation keeps running.
    """
    try:
        while not task.done() and clock.left > 0:
            await asyncio.wait({task}, timeout=clock.next_look)
        return task.done()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
