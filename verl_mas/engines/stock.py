"""Several policies on SGLang or vLLM: each policy numbers its replicas from an offset of its own.

verl names servers, sockets and ports by the replica's rank, which starts at 0 for every policy. Both ends, the
replica that starts a server and the adapter that looks it up, add `rollout.custom.rank_offset`; without one they
are verl's own classes in all they do.
"""

from __future__ import annotations

import importlib
import os
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import ray

OFFSET = "rank_offset"
PHASES = "phases"
ADAPTERS = {
    "sglang": "verl.workers.rollout.sglang_rollout.sglang_rollout",
    "vllm": "verl.workers.rollout.vllm_rollout",
}


def offset_of(config: Any) -> int:
    # verl gives replicas its YAML, which has no `custom`, and adapters the dataclass, which has.
    return int((config.get("custom") or {}).get(OFFSET, 0))


class OffsetReplica:
    """Mix in before a replica class of verl."""

    server_class: Any

    def __init__(self, replica_rank: int, config: Any, *args: Any, **kwargs: Any):
        self._offset = offset_of(config)
        super().__init__(replica_rank + self._offset, config, *args, **kwargs)  # type: ignore[call-arg]
        if (config.get("custom") or {}).get(PHASES):
            self.server_class = ray.remote(_pausable(config.name, self.server_class))

    async def init_hybrid(self, worker_group: Any) -> None:
        # verl takes the workers from world_size x rank on; those before the policy's own are nobody's.
        nobody = [None] * (self._offset * self.world_size)  # type: ignore[attr-defined]
        await super().init_hybrid(SimpleNamespace(workers=[*nobody, *worker_group.workers]))  # type: ignore[misc]


class PausableVllm:
    """A server that can leave the GPU and come back with its weights; verl's own sleep drops them."""

    async def pause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            await self.engine.sleep(level=1)  # type: ignore[attr-defined]

    async def unpause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            await self.engine.wake_up(tags=self._get_wake_up_tags())  # type: ignore[attr-defined]


class PausableSglang:
    """The same for SGLang, which verl starts with a copy of the weights in the computer's memory."""

    async def pause(self) -> None:
        await self.sleep()  # type: ignore[attr-defined]

    async def unpause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

            request = ResumeMemoryOccupationReqInput(tags=["kv_cache", "weights"])
            await self.tokenizer_manager.resume_memory_occupation(request, None)  # type: ignore[attr-defined]


PAUSABLE = {"vllm": PausableVllm, "sglang": PausableSglang}


def _pausable(engine: str, server: Any) -> type[Any]:
    stock = server.__ray_metadata__.modified_class
    return type(stock.__name__, (PAUSABLE[engine], stock), {})


class OffsetAdapter:
    """Mix in before an adapter class of verl."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1):
        if replica_rank == -1:
            size = config.tensor_model_parallel_size * config.data_parallel_size * config.pipeline_model_parallel_size
            replica_rank = int(os.environ["RANK"]) // size + offset_of(config)
        super().__init__(config, model_config, device_mesh, replica_rank)  # type: ignore[call-arg]


def register_replica(replica: ModuleType) -> None:
    registry = replica.RolloutReplicaRegistry
    for name in ADAPTERS:
        # verl's own loader also prepares what the engine's import needs.
        registry.register(name, partial(_with_offset, registry._registry[name]))


def _with_offset(load: Any) -> type[Any]:
    stock = load()
    return type(stock.__name__, (OffsetReplica, stock), {})


def register_adapter(base: ModuleType) -> None:
    for name in ADAPTERS:
        base._ROLLOUT_REGISTRY[(name, "async")] = f"{__name__}.{name}"


def __getattr__(name: str) -> type[Any]:
    """verl looks an adapter up here by name; its base comes with the engine itself, so only then."""
    if name not in ADAPTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    stock = importlib.import_module(ADAPTERS[name]).ServerAdapter
    return type(stock.__name__, (OffsetAdapter, stock), {})
