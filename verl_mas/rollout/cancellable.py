"""verl's LLM client, but cancelling a `generate` also cancels it in the server. verl 0.9.1 only stops waiting.

vLLM and the embedded engine then abort the request themselves; for SGLang a team's servers do (`engines.kinds`).
"""

from __future__ import annotations

import asyncio
import copy

import ray
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.busy import Busy
from verl_mas.verl_.types import Actor


def cancellable(client: LLMServerClient, busy: Busy | None = None) -> LLMServerClient:
    """A copy of the client: cancelling one of its calls also ends the request in the engine. `busy`: counts calls."""
    counted = busy or Busy()
    copied = copy.copy(client)
    acquire = type(client)._acquire_server.__get__(copied)  # noqa: SLF001

    async def acquire_cancellable(request_id: str, **extra: object) -> tuple[str, _Server]:
        server_id, server = await acquire(request_id, **extra)
        return server_id, _Server(server, counted)

    copied._acquire_server = acquire_cancellable  # type: ignore[method-assign,assignment]  # noqa: SLF001
    return copied


class _Server:
    """A server handle whose `generate.remote(...)` ends in the engine when its caller is cancelled."""

    def __init__(self, handle: Actor, busy: Busy):
        self._handle, self._busy = handle, busy
        self.generate = self

    async def remote(self, **kwargs: object) -> TokenOutput:
        with self._busy.request():
            reference: ray.ObjectRef[TokenOutput] = self._handle.generate.remote(**kwargs)
            try:
                return await reference
            except asyncio.CancelledError:
                ray.cancel(reference)
                raise
