"""The progress of many sessions, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

# Seconds between two lines.
EVERY_S = 10.0


class Progress:
    """Counts results, and shows their mean."""

    def __init__(self, title: str, total: int):
        self._title, self._total = title, total
        self._done, self._sum, self._started = 0, 0.0, time.monotonic()
        self._next = self._started + EVERY_S
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, TextColumn("mean {task.fields[mean]:.3f}"), console=Console(stderr=True))
            self._task = self._bar.add_task(self._title, total=self._total, mean=0.0)
            self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._done:
            self._line()

    def add(self, value: float) -> None:
        self._done, self._sum = self._done + 1, self._sum + value
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, mean=self._sum / self._done)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            self._line()

    def _line(self) -> None:
        seconds = time.monotonic() - self._started
        left = seconds / self._done * (self._total - self._done)
        mean = self._sum / self._done
        sys.stderr.write(
            f"{self._title}: {self._done}/{self._total} sessions, mean {mean:.3f}, {seconds:.0f} s, {left:.0f} s left\n"
        )
