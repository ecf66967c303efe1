"""The engines of a local policy, trained or frozen, as the team uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING

import ray
from omegaconf import DictConfig
from verl.utils.ray_utils import auto_await
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutReplica

from verl_mas.rollout.team_client import Balanced, Only, Slices, TeamClient
from verl_mas.trainer.pools.phases import verbs
from verl_mas.verl_.types import Actor

if TYPE_CHECKING:
    from verl_mas.trainer.checkpoint import Saved


class Servers:
    name: str
    config: DictConfig
    llm_server_manager: LLMServerManager
    metrics: Mapping[str, float] = MappingProxyType({})
    """Of the last `wake`."""

    @property
    def saved(self) -> Mapping[str, Saved]:
        """What a checkpoint has of them, by the name of its folder."""
        return {}

    def on_device(self) -> AbstractContextManager[None]:
        """Around work on several of its policies. verl moves the weights of one policy itself, for each call."""
        return nullcontext()

    @property
    def engine(self) -> str:
        name: str = self.config.actor_rollout_ref.rollout.name
        return name

    @property
    def servers(self) -> list[Actor]:
        return [server for replica in self.llm_server_manager.get_replicas() for server in replica.servers]

    def client(self, adapter: str | None = None, slices: Actor | None = None, resumes: bool = False) -> LLMServerClient:
        """`adapter`: the policy whose adapter serves the requests. `slices`: the time slices of its pool.

        `resumes`: a request that an engine aborts continues when engines take requests again.
        """
        handles = self.llm_server_manager.server_handles
        server: Balanced | Only | Slices = Only(handles[0]) if len(handles) == 1 else Balanced()
        if slices is not None:
            server = Slices(self.name, slices)
        given = {"server": server, "adapter": adapter, "resumes": resumes}
        return self.llm_server_manager.get_client(TeamClient, **given)

    @auto_await  # type: ignore[untyped-decorator]
    async def abort(self) -> None:
        """Stop all requests at once. Their partial replies return, and further requests are rejected until `resume`."""
        await asyncio.gather(*[replica.abort_all_requests(reject_request=True) for replica in self._replicas])

    @auto_await  # type: ignore[untyped-decorator]
    async def resume(self) -> None:
        """Take requests again."""
        await asyncio.gather(*[replica.resume_generation() for replica in self._replicas])

    @property
    def _replicas(self) -> list[RolloutReplica]:
        replicas: list[RolloutReplica] = self.llm_server_manager.get_replicas()
        return replicas

    def pause(self) -> None:
        """Free the GPU's memory and keep the weights."""
        method, _ = verbs(self.engine)
        ray.get([getattr(server, method).remote() for server in self.servers])
