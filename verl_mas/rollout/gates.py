"""Where requests wait while the engines of their policy change weights."""

from __future__ import annotations

import asyncio

from verl_mas.workflow.clock import held


class Gate:
    """Of one policy's engines, in one worker. It starts open; requests pass it before they reach an engine.

    The trainer closes the gates of all workers before it aborts the engines, and opens them when all engines serve.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.closings = 0
        """How often it was closed."""

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def close(self) -> None:
        self.closings += self.is_open
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        """Return once it is open, first come, first served. The clocks of act and session stand still until then."""
        while not self.is_open:
            with held():
                await self._open.wait()
