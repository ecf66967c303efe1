"""A policy that only serves: engines with their own checkpoint, no training process, no optimiser."""

from __future__ import annotations

import asyncio

from omegaconf import DictConfig, open_dict
from verl.single_controller.ray import RayResourcePool
from verl.single_controller.ray.base import split_resource_pool
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.ray_utils import auto_await
from verl.workers.config import HFModelConfig
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplica

from verl_mas.config.engine_tag import EngineTag
from verl_mas.trainer.policies.servers import Servers


class FrozenPolicy(Servers):
    """A local policy without updates."""

    trainable = False

    def __init__(self, name: str, view: DictConfig, pool: RayResourcePool):
        self.name, self.config = name, view
        with open_dict(view):
            # No trainer sends weights, so the engine reads its checkpoint.
            view.actor_rollout_ref.rollout.load_format = "auto"
        model: HFModelConfig = omega_conf_to_dataclass(view.actor_rollout_ref.model)
        self.tokenizer, self.processor = model.tokenizer, model.processor
        self.llm_server_manager = Engines.create(config=view, rollout_resource_pool=pool)
        self.sleep()

    @auto_await  # type: ignore[untyped-decorator]
    async def wake(self, step: int) -> None:
        # Nothing slept, and SGLang ends where memory is resumed that was not released.
        if not self.config.actor_rollout_ref.rollout.free_cache_engine:
            return
        await asyncio.gather(*[replica.wake_up() for replica in self.llm_server_manager.get_replicas()])

    @auto_await  # type: ignore[untyped-decorator]
    async def sleep(self) -> None:
        await asyncio.gather(*[replica.sleep() for replica in self.llm_server_manager.get_replicas()])


class Engines(LLMServerManager):
    """Engines beside other policies' processes, in the same placement group."""

    async def _initialize_llm_servers(self, start_rank: int | None = None) -> None:
        rollout = self.rollout_config
        size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
        shares = split_resource_pool(self.rollout_resource_pool, size)
        self.rollout_replicas = [self._replica(rank) for rank in range(len(shares))]
        for replica, share in zip(self.rollout_replicas, shares, strict=True):
            # One after the other: an engine takes more memory while it starts than afterwards.
            await self._start(replica, share)
        self.server_handles = [replica.server_handle for replica in self.rollout_replicas]
        self.server_addresses = [replica.server_address for replica in self.rollout_replicas]

    async def _start(self, replica: RolloutReplica, share: RayResourcePool) -> None:
        await replica.init_colocated(share)

    def _replica(self, rank: int) -> RolloutReplica:
        return self.rollout_replica_class(
            replica_rank=rank,
            config=self.rollout_config,
            model_config=self.model_config,
            gpus_per_node=self.rollout_config.n_gpus_per_node,
            name_suffix=EngineTag.of(self.rollout_config).policy,
        )
