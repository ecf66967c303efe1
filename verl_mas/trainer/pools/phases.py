"""A time-sliced pool: one policy's engines are awake at a time, so that each policy can use the whole GPU.

Requests to the policy that is awake run; requests to other policies wait. When no request runs any more, the policy
that has waited longest gets the next time slice: its engines wake up, and the weights of the other policies stay in
host memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import cast

import ray

from verl_mas.engines.facts import facts_of
from verl_mas.verl_.types import Actor

Change = Callable[[str, str], Awaitable[None]]
POLL_S = 0.01


class TimeSlices:
    """Admits requests of one policy at a time. `change(old, new)` puts policy `old` to sleep and wakes policy `new`."""

    def __init__(self, awake: str, change: Change):
        self.awake = awake
        self._change = change
        self._running = 0
        self._switch: asyncio.Task[None] | None = None
        # Policy -> its waiting requests, the policy that has waited longest first. While another policy waits, new
        # requests of the awake policy wait here, too, so that its time slice ends.
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def enter(self, policy: str) -> None:
        if policy == self.awake and not self._waiting and self._switch is None:
            self._running += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(policy, []).append(admitted)
        self._next_slice()
        await admitted

    async def leave(self) -> None:
        self._running -= 1
        self._next_slice()

    async def finally_awake(self) -> str:
        """Return the policy that is awake once no switch is pending, including switches for cancelled requests."""
        while self._waiting or self._switch is not None:
            await asyncio.sleep(POLL_S)
        return self.awake

    def _next_slice(self) -> None:
        if self._running == 0 and self._waiting and self._switch is None:
            policy = next(iter(self._waiting))
            self._switch = asyncio.ensure_future(self._wake(policy))
            self._switch.add_done_callback(partial(self._start_slice, policy))

    async def _wake(self, policy: str) -> None:
        if policy != self.awake:
            await self._change(self.awake, policy)
            self.awake = policy

    def _start_slice(self, policy: str, switch: asyncio.Task[None]) -> None:
        """Admit the requests that wait for this time slice, or raise the error of the switch to all of them."""
        if switch.cancelled():
            return
        failure, self._switch = switch.exception(), None
        for admitted in self._waiting.pop(policy):
            if admitted.done():
                continue  # the caller was cancelled while it waited
            if failure is not None:
                admitted.set_exception(failure)
            else:
                self._running += 1
                admitted.set_result(None)
        self._next_slice()


class SlicesActor(TimeSlices):
    """Time slices of one pool, shared by all agent-loop workers."""

    @classmethod
    def start(cls, engines: Mapping[str, tuple[str, Sequence[Actor]]], awake: str) -> Actor:
        return cast(Actor, ray.remote(cls).options(num_cpus=0, max_concurrency=10_000).remote(engines, awake))

    def __init__(self, engines: Mapping[str, tuple[str, Sequence[Actor]]], awake: str):
        super().__init__(awake, self._swap)
        self._engines = engines

    async def set_awake(self, policy: str) -> None:
        self.awake = policy

    async def _swap(self, old: str, new: str) -> None:
        for policy, pauses in ((old, True), (new, False)):
            engine, servers = self._engines[policy]
            pause, unpause = sleep_methods(engine)
            method = pause if pauses else unpause
            await asyncio.gather(*[getattr(server, method).remote() for server in servers])


def sleep_methods(engine: str) -> tuple[str, str]:
    """Return the names of two methods of an engine's server.

    The first method frees GPU memory without losing weights; the second method allocates the memory again.
    """
    return ("pause", "unpause") if facts_of(engine).server_mixin else ("sleep", "wake_up")
