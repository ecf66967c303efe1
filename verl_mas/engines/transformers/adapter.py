"""The engine's part in a training worker: it wakes the server and sends it weights."""

import os

import ray
from torch.distributed.device_mesh import DeviceMesh
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout

from verl_mas.config.adapters import read_table
from verl_mas.config.engine_tag import EngineTag
from verl_mas.engines.transformers import server_name
from verl_mas.engines.transformers.weights import MOST_BYTES, Packed, Weights, pack
from verl_mas.verl_.types import Actor


class ServerAdapter(BaseRollout):
    """Sends weights from a training worker to the worker's own server, which is found by its rank."""

    sleep_level = 1  # verl sets this level for LoRA; this engine keeps its weights at every level

    def __init__(
        self, config: RolloutConfig, model_config: HFModelConfig, device_mesh: DeviceMesh, replica_rank: int = -1
    ):
        super().__init__(config, model_config, device_mesh)
        own = int(os.environ["RANK"]) + EngineTag.of(config).rank_offset if replica_rank == -1 else replica_rank
        self.replica_rank = own
        self.is_leader_rank = True
        self._server: Actor | None = None

    @property
    def server(self) -> Actor:
        """The server of this rank, found on first use, because servers start after the workers."""
        if self._server is None:
            self._server = ray.get_actor(server_name(EngineTag.of(self.config).policy, self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        if self.config.free_cache_engine:
            await self.server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        if self.config.free_cache_engine:
            await self.server.sleep.remote()

    async def update_weights(
        self,
        weights: Weights,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: object = None,
        **kwargs: object,
    ) -> None:
        """Send all weights, bucket by bucket. For a base model with adapters, send only the weights of all adapters."""
        assert wire_format == "named_tensors", f"this engine takes whole weights, not {wire_format}"
        assert peft_config is None or read_table(self.config.custom), "checks refuse an adapter without a base"
        bucket_bytes = min(self.config.checkpoint_engine.update_weights_bucket_megabytes << 20, MOST_BYTES)
        previous: list[Packed] | None = None
        async for bucket in pack(weights, bucket_bytes):
            if previous:
                await self.server.update_weights.remote(previous, last=False)
            previous = bucket
        await self.server.update_weights.remote(previous or [], last=True, global_steps=global_steps)
