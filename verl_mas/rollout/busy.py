"""Times of a worker: spans with requests at the servers of a policy, and the longest block of the event loop."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from verl_mas.workflow import clock

# Begin and end of a span, in seconds of the wall clock, because spans of several machines are merged.
Span: TypeAlias = tuple[float, float]
LAG_EVERY_S = 0.05


class Busy:
    """Records the spans in which at least one request of this process is running."""

    def __init__(self) -> None:
        self._out = 0
        self._since = 0.0
        self._spans: list[Span] = []
        self._seconds = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        begin = clock.now()
        if self._out == 0:
            self._since = begin
        self._out += 1
        try:
            yield
        finally:
            self._out -= 1
            self._seconds += clock.now() - begin
            if self._out == 0:
                self._spans.append((self._since, clock.now()))

    def pop(self) -> tuple[Span, ...]:
        """Return and clear the spans. A span that has not ended is split at this call."""
        spans, self._spans = self._spans, []
        if self._out:
            now = clock.now()
            spans.append((self._since, now))
            self._since = now
        return tuple(spans)

    def pop_seconds(self) -> float:
        """Return and clear the summed seconds of all requests that ended since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Lag:
    """Measures how long an event loop is blocked. While the loop is blocked, none of its sessions makes progress."""

    def __init__(self) -> None:
        self._watch: asyncio.Task[None] | None = None
        self._longest = 0.0

    def begin(self) -> None:
        """Start watching the running event loop."""
        self._watch = self._watch or asyncio.get_running_loop().create_task(self._run())

    def pop(self) -> float:
        """Return the longest delay since `begin`, and stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        longest, self._watch, self._longest = self._longest, None, 0.0
        return longest

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._longest = max(self._longest, loop.time() - due)


def merge_spans(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """Merge spans that overlap or are at most `gap` seconds apart. The result is sorted by time."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def total(spans: Iterable[Span]) -> float:
    """Seconds that at least one of the spans covers."""
    return sum(end - begin for begin, end in merge_spans(spans))


def seconds(spans: Iterable[Span], window: Span) -> float:
    """Seconds of the window that at least one of the spans covers."""
    first, last = window
    inside = ((max(begin, first), min(end, last)) for begin, end in spans)
    return total((begin, end) for begin, end in inside if end > begin)
