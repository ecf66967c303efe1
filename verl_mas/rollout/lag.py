"""Measures how long an event loop is blocked. Meanwhile, none of its sessions makes progress."""

from __future__ import annotations

import asyncio

EVERY_S = 0.05


class Longest(float):
    """A duration whose sum with another duration is the longer of the two durations."""

    def __add__(self, other: float) -> Longest:
        return Longest(max(self, other))


NO_LAG = Longest(0)


class Lag:
    def __init__(self) -> None:
        self._watch: asyncio.Task[None] | None = None
        self._longest = NO_LAG

    def begin(self) -> None:
        """Start watching the running event loop."""
        self._watch = self._watch or asyncio.get_running_loop().create_task(self._run())

    def pop(self) -> Longest:
        """Return the longest delay since `begin`, and stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        longest, self._watch, self._longest = self._longest, None, NO_LAG
        return longest

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._longest += loop.time() - due
