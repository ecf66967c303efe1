"""verl's LLM client of one policy's engines, extended for teams: gates, time slices, resumed and cancelled replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace

import ray
from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from verl_mas.rollout.busy import Busy
from verl_mas.rollout.resumed_reply import Decode, ResumedReply
from verl_mas.verl_.types import Actor, Fields
from verl_mas.workflow.clock import held, uncounted


class Gate:
    """A gate in a worker. Requests pass the gate before they reach the engines of a policy. At first it is open.

    The trainer closes the gates of all workers before it aborts the engines, and opens them when all engines serve.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.closings = 0  # how often it was closed

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def close(self) -> None:
        self.closings += self.is_open
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        """Wait until the gate is open, first come, first served. The clocks of act and session are stopped
        meanwhile."""
        while not self.is_open:
            with held():
                await self._open.wait()


class TeamClient(LLMServerClient):
    """Client that also ends a request in the engine when `generate` is cancelled; verl 0.9.1 only stops waiting.

    vLLM and the embedded engine then abort the request themselves. For SGLang, the servers of a team abort it
    (`engines.kinds`).
    """

    # The worker that uses the client sets `gate` and `decode`.
    gate: Gate
    decode: Decode

    def __init__(
        self,
        config: DictConfig,
        load_balancer_handle: Actor,
        *,
        only_server: Actor | None = None,
        slices: tuple[Actor, str] | None = None,
        adapter: str | None = None,
        resumes: bool = False,
    ):
        """`only_server`: the server of a policy with a single server, so that requests do not call verl's balancer.
        `slices`: the `SlicesActor` of a time-sliced pool, and the policy whose time slices requests wait for.
        `resumes`: whether a reply that an engine aborts continues when the gate is open again.
        `adapter`: the policy whose adapter generates the replies. The client itself adds this name to each request,
        because verl's agent loops also call `generate`, and do not pass it.
        """
        super().__init__(config, load_balancer_handle)
        self.only_server, self.slices, self.adapter, self.resumes = only_server, slices, adapter, resumes
        self.busy = Busy()

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Fields, **kwargs: object
    ) -> TokenOutput:
        if self.adapter is not None:
            kwargs["adapter"] = self.adapter
        sent = partial(super().generate, request_id, **kwargs)
        if not self.resumes:
            output: TokenOutput = await sent(prompt_ids=prompt_ids, sampling_params=sampling_params)
            return output
        reply = ResumedReply(prompt_ids, sampling_params, self.config.actor_rollout_ref.rollout, self.decode)
        while not reply.whole:
            await self.gate.passed()
            closings = self.gate.closings
            part = await sent(**reply.request())
            # If there is no token although the gate was not closed, the engine refuses the request, and would do so
            # again.
            reply.add(part, refused=not part.token_ids and closings == self.gate.closings)
        return reply.joined()

    async def _acquire_server(self, request_id: str, **extra: object) -> tuple[str, SimpleNamespace]:  # type: ignore[override]
        if self.slices is not None:
            await self._enter(*self.slices)
        if self.only_server is not None:
            return "only", self._cancellable(self.only_server)
        try:
            server_id, server = await super()._acquire_server(request_id, **extra)
        except BaseException:
            self._leave()
            raise
        return server_id, self._cancellable(server)

    def _cancellable(self, server: Actor) -> SimpleNamespace:
        """Return a handle whose `generate.remote(...)` also ends the request in the engine when the caller is
        cancelled."""

        async def remote(**kwargs: object) -> TokenOutput:
            with self.busy.request():
                reference: ray.ObjectRef[TokenOutput] = server.generate.remote(**kwargs)
                try:
                    return await reference
                except asyncio.CancelledError:
                    ray.cancel(reference)
                    raise

        return SimpleNamespace(generate=SimpleNamespace(remote=remote))

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        if self.only_server is None:
            super()._release_server(server_id, request_id)
        self._leave()

    async def _enter(self, slices: Actor, policy: str) -> None:
        admitted: asyncio.Future[None] = asyncio.ensure_future(slices.enter.remote(policy))
        try:
            with uncounted():
                await asyncio.shield(admitted)
        except BaseException:
            # A request that is cancelled while it waits is still admitted later, and must leave then.
            # If `enter` itself fails or is cancelled, the request has entered no slice, and must not leave one.
            admitted.add_done_callback(lambda done: done.cancelled() or done.exception() or self._leave())
            raise

    def _leave(self) -> None:
        if self.slices is not None:
            self.slices[0].leave.remote()


class Served(dict[str, LLMServerClient]):
    """One client per policy, by name, and the agent-loop workers that were made before the engines."""

    def __init__(self, clients: Mapping[str, LLMServerClient], workers: Sequence[Actor]):
        super().__init__(clients)
        self.workers = list(workers)
