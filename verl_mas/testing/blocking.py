"""Finds code that blocks the event loop, with its place."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMIT_S = 0.1
INTERVAL_S = 0.01


class Watch:
    """A thread that counts how long the loop stands still. `places`: where code of one file was running then.

    The time is counted in turns of this thread, so that a machine that stops the whole process is not mistaken for
    code that blocks.
    """

    def __init__(self, file: str):
        self.file = file
        self.places: set[str] = set()
        self._beats = 0
        self._loop_thread = threading.get_ident()
        self._done = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        self._beat(loop.call_later)
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _beat(self, call_later: Callable[..., object]) -> None:
        self._beats += 1
        if not self._done.is_set():
            call_later(INTERVAL_S, self._beat, call_later)

    def _look(self) -> None:
        seen, stopped = -1, 0.0
        before = time.perf_counter()
        while not self._done.wait(INTERVAL_S):
            now = time.perf_counter()
            stopped = stopped + min(now - before, 2 * INTERVAL_S) if self._beats == seen else 0.0
            seen, before = self._beats, now
            if stopped > LIMIT_S and (place := self._place()):
                self.places.add(place)

    def _place(self) -> str | None:
        """The innermost line of the file that the loop runs now; what runs the loop may be in the same file."""
        frame: types.FrameType | None = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  # documented
        while frame is not None and frame.f_code.co_filename not in (self.file, asyncio.base_events.__file__):
            frame = frame.f_back
        return f"{self.file}:{frame.f_lineno}" if frame and frame.f_code.co_filename == self.file else None
