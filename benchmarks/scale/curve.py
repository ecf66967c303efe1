"""Common code of the scale benchmarks: CPU time by owner, memory, and the exponent of a curve."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import linear_regression
from typing import Any

MIB = 2**20


def exponent(curve: Mapping[int, float]) -> float:
    """Return the exponent of a power law: the slope of the values' logarithms over the sizes' logarithms."""
    points = [(math.log(size), math.log(value)) for size, value in curve.items() if value > 0]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else math.nan


def show(title: str, rows: Mapping[str, Mapping[int, float]], note: str = "") -> None:
    """Print curves by size as a table, each with its exponent."""
    sizes = list(dict.fromkeys(size for curve in rows.values() for size in curve))
    lines = [title, f"{'':42}" + "".join(f"{size:>11,}" for size in sizes) + "   exponent"]
    for name, curve in rows.items():
        values = "".join(f"{curve[size]:11,.{places(curve[size])}f}" if size in curve else f"{'':11}" for size in sizes)
        lines.append(f"{name:42}{values}   {exponent(curve):8.2f}")
    sys.stdout.write("\n".join([*lines, *([note] if note else [])]) + "\n")
    sys.stdout.flush()


def places(value: float) -> int:
    return 0 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3


def ratio(what: str, new: float, baseline: str, old: float, limit: float | None = None) -> None:
    bound = "" if limit is None else f" (at most {limit:g})"
    sys.stdout.write(f"{what}: {new:.4g}, {baseline}: {old:.4g}: x {new / old:.3f}{bound}\n")
    sys.stdout.flush()


def sizes(text: str) -> list[int]:
    """Read `1k,4k` as numbers."""
    return [int(part.removesuffix("k")) * (1024 if part.endswith("k") else 1) for part in text.split(",")]


def memory(pid: int | str = "self") -> float:
    """Return the private memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def processor_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


class Owners:
    """CPU seconds of this process by owner. The seconds of a nested call count once, for the inner call's owner."""

    def __init__(self, rest: str):
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack, self._since = [rest], time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def of(self, owner: str) -> Iterator[None]:
        self._turn()
        self._stack.append(owner)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def take(self) -> dict[str, float]:
        """Return the CPU seconds by owner since the last call of `take`."""
        self._turn()
        taken, self.seconds = self.seconds, defaultdict(float)
        return taken

    @contextmanager
    def watching(self, places: Mapping[str, Sequence[tuple[Any, str]]]) -> Iterator[None]:
        """Count the CPU seconds of functions for their owners.

        `places` has the functions of each owner, each function as an object and the name of its attribute. `{}` in an
        owner's name stands for the owner of the caller.
        """
        before = [(place, name, getattr(place, name)) for each in places.values() for place, name in each]
        for owner, each in places.items():
            for place, name in each:
                setattr(place, name, self._watched(owner, getattr(place, name)))
        try:
            yield
        finally:
            for place, name, function in before:
                setattr(place, name, function)

    def _watched(self, owner: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.of(owner.format(self._stack[-1])):
                return function(*args, **kwargs)

        return call
