"""A pool served in phases: one policy's engines awake at a time, so that each may take the whole GPU.

Requests of the policy that is awake run; those of another wait. When nothing runs any more the longest waiting policy's
turn comes: the engines change places, and weights stay in the computer's memory meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import LLMServerClient

from verl_mas.engines.facts import facts_of

Change = Callable[[str, str], Awaitable[None]]


class Turnstile:
    """Lets one policy's requests in at a time. `change(old, new)` swaps the engines."""

    def __init__(self, awake: str, change: Change):
        self.awake = awake
        self._change = change
        self._running = 0
        self._turn: asyncio.Task[None] | None = None
        # By policy, the longest waiting first. The policy that is awake waits here too while another does, so that
        # its turn ends.
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def enter(self, policy: str) -> None:
        if policy == self.awake and not self._waiting and self._turn is None:
            self._running += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(policy, []).append(admitted)
        self._next_turn()
        await admitted

    async def leave(self) -> None:
        self._running -= 1
        self._next_turn()

    def _next_turn(self) -> None:
        if self._running == 0 and self._waiting and self._turn is None:
            self._turn = asyncio.ensure_future(self._give_turn(next(iter(self._waiting))))

    async def _give_turn(self, policy: str) -> None:
        failure: Exception | None = None
        try:
            if policy != self.awake:
                await self._change(self.awake, policy)
                self.awake = policy
        except Exception as error:  # told to everyone who waits for this turn
            failure = error
        self._turn = None
        for admitted in self._waiting.pop(policy):
            if admitted.done():
                continue  # its caller was cancelled while it waited
            if failure is not None:
                admitted.set_exception(failure)
            else:
                self._running += 1
                admitted.set_result(None)
        self._next_turn()


class TurnstileActor:
    """The turnstile of one pool, reached by every agent-loop worker."""

    @classmethod
    def start(cls, engines: Mapping[str, tuple[str, Sequence[ActorHandle]]], awake: str) -> ActorHandle:
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 10_000}
        actor: Any = ray.remote(cls)
        return actor.options(**options).remote(engines, awake)

    def __init__(self, engines: Mapping[str, tuple[str, Sequence[ActorHandle]]], awake: str):
        self._engines = engines
        self._turnstile = Turnstile(awake, self._change)

    async def enter(self, policy: str) -> None:
        await self._turnstile.enter(policy)

    async def leave(self) -> None:
        await self._turnstile.leave()

    async def awake(self) -> str:
        return self._turnstile.awake

    async def set_awake(self, policy: str) -> None:
        self._turnstile.awake = policy

    async def _change(self, old: str, new: str) -> None:
        await self._tell(old, pause=True)
        await self._tell(new, pause=False)

    async def _tell(self, policy: str, *, pause: bool) -> None:
        engine, servers = self._engines[policy]
        method = verbs(engine)[0 if pause else 1]
        await asyncio.gather(*[getattr(server, method).remote() for server in servers])


def verbs(engine: str) -> tuple[str, str]:
    """How an engine's server gives its GPU memory up without losing weights, and takes it back."""
    return ("pause", "unpause") if facts_of(engine).pausable else ("sleep", "wake_up")


class PhasedClient(LLMServerClient):
    """verl's client, whose requests go through the pool's turnstile."""

    def __init__(self, *args: Any, policy: str, turnstile: ActorHandle, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._policy, self._turnstile = policy, turnstile

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, ActorHandle]:
        admitted: Any = self._turnstile.enter.remote(self._policy)
        try:
            await admitted
            return await super()._acquire_server(request_id, **extra)
        except BaseException:
            # Whoever is cancelled while it waits is let in later all the same, and must leave then.
            _in_background(self._leave_after(admitted))
            raise

    async def _leave_after(self, admitted: Any) -> None:
        await admitted
        await self._turnstile.leave.remote()

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        super()._release_server(server_id, request_id)
        self._turnstile.leave.remote()


_TASKS: set[asyncio.Task[None]] = set()


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
