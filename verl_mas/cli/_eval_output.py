"""What `verl-mas eval` shows: its progress on stderr, and the tables of what it found."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from verl_mas.serve.eval_report import Table as Numbers
from verl_mas.util.text import printable
from verl_mas.verl_.types import Fields

EVERY_S = 10.0  # Seconds between two lines


class EvalProgress:
    """Counts results, and shows their mean: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, title: str, total: int):
        self._title, self._total = title, total
        self._done, self._sum, self._started = 0, 0.0, time.monotonic()
        self._next = self._started + EVERY_S
        self._bar: Progress | None = None

    def __enter__(self) -> EvalProgress:
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("mean {task.fields[mean]:.3f}"), console=Console(stderr=True))
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
        done = f"{self._done}/{self._total} sessions, mean {self._sum / self._done:.3f}"
        sys.stderr.write(f"{self._title}: {done}, {seconds:.0f} s, {left:.0f} s left\n")


def tables(teams: Sequence[Fields], difference: Numbers) -> Iterator[RenderableType]:
    for team in teams:
        failed = f", {team['failed']} failed" if team["failed"] else ""
        yield Text(f"\n{team['dir']}: {team['tasks']} tasks, {team['sessions']} sessions{failed}")
        yield _scores(team["sources"])
        agents = team["agents"]
        names = list(dict.fromkeys(name for found in agents.values() for name in found))
        table = Table("agent", *[name.replace("_", " ") for name in names])
        for agent, found in agents.items():
            table.add_row(agent, *[f"{found[name]:.3g}" if name in found else "" for name in names])
        yield table
    if difference:
        first, second = (team["dir"] for team in teams)
        yield Text(f"\n{first} minus {second}, paired by task")
        yield _scores(difference, signed=True)


def _scores(sources: Numbers, *, signed: bool = False) -> Table:
    table = Table("source", "", "", "95 %")
    for source, found in sources.items():
        for name, value in found.items():
            if "/" not in name:
                low, high = found.get(f"{name}/low"), found.get(f"{name}/high")
                between = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
                table.add_row(Text(printable(source)), name, f"{value:+.3f}" if signed else f"{value:.3f}", between)
    return table
