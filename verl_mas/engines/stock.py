"""Several policies on an engine of verl's own: each policy numbers its replicas from an offset of its own.

verl names servers, sockets and ports by the replica's rank, which starts at 0 for every policy. Both ends, the
replica that starts a server and the adapter that looks it up, add the offset of `EngineTag`; without a tag they are
verl's own classes in all they do.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from verl_mas.config.engine_tag import EngineTag
from verl_mas.engines.facts import facts_of


class OffsetReplica:
    """Mix in before a replica class of verl."""

    server_class: Any
    pausable: type[Any] | None = None

    def __init__(self, replica_rank: int, config: Any, *args: Any, **kwargs: Any):
        tag = EngineTag.of(config)
        self._offset = tag.rank_offset
        super().__init__(replica_rank + self._offset, config, *args, **kwargs)  # type: ignore[call-arg]
        if tag.time_sliced and self.pausable:
            self.server_class = _pausable(self.pausable, self.server_class)

    async def init_hybrid(self, worker_group: Any) -> None:
        # verl takes the workers from world_size x rank on; those before the policy's own are nobody's.
        nobody = [None] * (self._offset * self.world_size)  # type: ignore[attr-defined]
        await super().init_hybrid(SimpleNamespace(workers=[*nobody, *worker_group.workers]))  # type: ignore[misc]


def _pausable(pausable: type[Any], server: Any) -> Any:
    import ray

    stock = server.__ray_metadata__.modified_class
    return ray.remote(type(stock.__name__, (pausable, stock), {}))


class OffsetAdapter:
    """Mix in before an adapter class of verl."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1):
        if replica_rank == -1:
            size = config.tensor_model_parallel_size * config.data_parallel_size * config.pipeline_model_parallel_size
            replica_rank = int(os.environ["RANK"]) // size + EngineTag.of(config).rank_offset
        super().__init__(config, model_config, device_mesh, replica_rank)  # type: ignore[call-arg]


def register_replica(engine: str, pausable: type[Any], replica: ModuleType) -> None:
    registry = replica.RolloutReplicaRegistry
    # verl's own loader also prepares what the engine's import needs.
    registry.register(engine, partial(_with_offset, registry._registry[engine], pausable))


def _with_offset(load: Callable[[], type[Any]], pausable: type[Any]) -> type[Any]:
    stock = load()
    return type(stock.__name__, (OffsetReplica, stock), {"pausable": pausable})


def register_adapter(engine: str, base: ModuleType) -> None:
    base._ROLLOUT_REGISTRY[(engine, "async")] = f"{__name__}.{engine}"


def __getattr__(name: str) -> type[Any]:
    """verl looks an adapter up here by name; its base comes with the engine itself, so only then."""
    module = facts_of(name).stock_adapter
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    stock = importlib.import_module(module).ServerAdapter
    return type(stock.__name__, (OffsetAdapter, stock), {})
