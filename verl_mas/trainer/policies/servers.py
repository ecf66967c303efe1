"""The engines of a local policy, trained or frozen, with the calls that the team's trainer makes to control them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ParamSpec

import ray
from omegaconf import DictConfig, open_dict
from verl.single_controller.ray import RayResourcePool
from verl.single_controller.ray.base import split_resource_pool
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.ray_utils import auto_await
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutReplica

from verl_mas.config.engine_tag import EngineTag, gpus_of_replica
from verl_mas.rollout.team_client import TeamClient
from verl_mas.trainer.checkpoint import Saved
from verl_mas.trainer.pools.phases import sleep_methods
from verl_mas.trainer.starting import Turn
from verl_mas.trainer.timeline import LAUNCH
from verl_mas.verl_.types import Actor

P = ParamSpec("P")
blocking: Callable[[Callable[P, Awaitable[None]]], Callable[P, None]] = auto_await


class Servers:
    """The engines of one policy."""

    name: str
    config: DictConfig
    llm_server_manager: LLMServerManager

    @property
    def saved(self) -> Mapping[str, Saved]:
        """The policies that a checkpoint contains, by the name of their folder."""
        return {}

    def on_device(self) -> AbstractContextManager[None]:
        """Context for work on several policies that share these weights.

        It does nothing for a policy without adapters, because verl moves the weights to the device for each call.
        """
        return nullcontext()

    @property
    def engine(self) -> str:
        return str(self.config.actor_rollout_ref.rollout.name)

    @property
    def servers(self) -> list[Actor]:
        return [server for replica in self._replicas for server in replica.servers]

    @property
    def receivers(self) -> list[Actor]:
        """The processes next to the engines that receive new weights."""
        return [worker for replica in self._replicas for worker in replica.workers]

    def client(self, adapter: str | None = None, slices: Actor | None = None, resumes: bool = False) -> LLMServerClient:
        """Make a client. `adapter`: the policy whose adapter serves requests. `slices`: the pool's `SlicesActor`.

        `resumes`: whether requests that an engine aborts continue once engines accept requests again.
        """
        handles = self.llm_server_manager.server_handles
        only = handles[0] if len(handles) == 1 else None
        entry = None if slices is None else (slices, self.name)
        given = {"only_server": only, "slices": entry, "adapter": adapter, "resumes": resumes}
        return self.llm_server_manager.get_client(TeamClient, **given)

    @blocking
    async def abort(self) -> None:
        """Stop all requests at once. Their partial replies return, and further requests are rejected until `resume`."""
        await asyncio.gather(*[replica.abort_all_requests(reject_request=True) for replica in self._replicas])

    @blocking
    async def resume(self) -> None:
        """Accept requests again."""
        await asyncio.gather(*[replica.resume_generation() for replica in self._replicas])

    @property
    def _replicas(self) -> list[RolloutReplica]:
        return list(self.llm_server_manager.get_replicas())

    def pause(self) -> None:
        """Free the engines' GPU memory without losing the weights."""
        method, _ = sleep_methods(self.engine)
        ray.get([getattr(server, method).remote() for server in self.servers])


class FrozenPolicy(Servers):
    """A local policy without updates."""

    def __init__(self, name: str, view: DictConfig, pool: RayResourcePool):
        self.name, self.config, self.pool = name, view, pool
        with open_dict(view):
            # No trainer sends weights, so the engine reads them from the model's files.
            view.actor_rollout_ref.rollout.load_format = "auto"
        self.tokenizer = omega_conf_to_dataclass(view.actor_rollout_ref.model).tokenizer

    def start(self, turn: Turn) -> None:
        turn.wait(self.pool.name_prefix)
        self.llm_server_manager = Engines.create(config=self.config, rollout_resource_pool=self.pool)
        self.sleep()
        turn.ended(LAUNCH)

    @blocking
    async def wake(self, step: int) -> None:
        # Without `free_cache_engine` the engine has not slept, and SGLang exits if it resumes memory that it did not
        # release.
        if not self.config.actor_rollout_ref.rollout.free_cache_engine:
            return
        await asyncio.gather(*[replica.wake_up() for replica in self._replicas])

    @blocking
    async def sleep(self) -> None:
        await asyncio.gather(*[replica.sleep() for replica in self._replicas])


class Engines(LLMServerManager):
    """Engines in the placement group of a pool, next to the processes of other policies."""

    async def _initialize_llm_servers(self, start_rank: int | None = None) -> None:
        size = gpus_of_replica(partial(getattr, self.rollout_config))
        shares = split_resource_pool(self.rollout_resource_pool, size)
        self.rollout_replicas = [
            self.rollout_replica_class(
                replica_rank=rank,
                config=self.rollout_config,
                model_config=self.model_config,
                gpus_per_node=self.rollout_config.n_gpus_per_node,
                name_suffix=EngineTag.of(self.rollout_config).policy,
            )
            for rank in range(len(shares))
        ]
        # Replicas start in parallel, as each has its own GPUs.
        await asyncio.gather(*map(self.start_replica, self.rollout_replicas, shares))
        self.server_handles = [replica.server_handle for replica in self.rollout_replicas]
        self.server_addresses = [replica.server_address for replica in self.rollout_replicas]

    async def start_replica(self, replica: RolloutReplica, share: RayResourcePool) -> None:
        await replica.init_colocated(share)
