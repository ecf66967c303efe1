"""Several policies on one of verl's own engines: each policy numbers its replicas from an offset.

verl names servers, sockets and ports by the replica's rank, which starts at 0 for every policy. Both ends, the
replica that starts a server and the adapter that looks it up, add the offset of `EngineTag`; without a tag they
behave as verl's own classes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias, cast

from verl_mas.config.engine_tag import EngineTag, gpus_of_replica
from verl_mas.engines.facts import facts_of
from verl_mas.verl_.registries import replicas, set_adapter
from verl_mas.verl_.types import Passed, Untyped

if TYPE_CHECKING:
    from verl.single_controller.ray import RayWorkerGroup
    from verl.workers.config import RolloutConfig
    from verl.workers.rollout.base import BaseRollout
    from verl.workers.rollout.replica import RolloutReplica
else:
    BaseRollout = RolloutReplica = object

# A class of a Ray actor, or of an engine: untyped.
EngineClass: TypeAlias = Untyped

# Calls that a server's actor can have open at once. With verl's 1,000 as many requests that wait for their turn keep
# `abort_all_requests`, `wake_up` and `resume_generation` from starting: verl-project/verl#7990. An open call of an
# async actor is a coroutine and takes no thread.
OUTSTANDING = 100_000
# verl's loader of SGLang sets an environment variable while it imports, and policies start side by side.
_loading = Lock()


class OffsetReplica(RolloutReplica):
    """Mix in before a replica class of verl."""

    server_class: EngineClass
    server_mixin: type[object] | None = None

    def __init__(self, replica_rank: int, config: RolloutConfig, *args: Passed, **kwargs: Passed):
        self.offset = EngineTag.of(config).rank_offset
        if EngineTag.is_in(config):
            # The rank is of this policy only, and its adapters look the server up by it.
            kwargs.pop("name_suffix", None)
        super().__init__(replica_rank + self.offset, config, *args, **kwargs)
        if self.server_mixin and EngineTag.is_in(config):
            import ray

            actor = self.server_class.__ray_metadata__.modified_class
            self.server_class = ray.remote(type(actor.__name__, (self.server_mixin, actor), {}))

    @property
    def max_concurrency(self) -> int:
        return OUTSTANDING

    async def init_hybrid(self, worker_group: RayWorkerGroup) -> None:
        # verl takes the workers from world_size x rank on, so places for the other policies' workers come first.
        others = [None] * (self.offset * self.world_size)
        placed = SimpleNamespace(workers=[*others, *worker_group.workers])
        await super().init_hybrid(cast("RayWorkerGroup", placed))


class OffsetAdapter(BaseRollout):
    """Mix in before an adapter class of verl."""

    def __init__(self, config: RolloutConfig, model_config: Passed, device_mesh: Passed, replica_rank: int = -1):
        if replica_rank == -1:
            size = gpus_of_replica(partial(getattr, config))
            replica_rank = int(os.environ["RANK"]) // size + EngineTag.of(config).rank_offset
        super().__init__(config, model_config, device_mesh, replica_rank)


def register_replica(engine: str, replica: ModuleType) -> None:
    # verl's own loader also prepares what the engine's import needs.
    load = replicas(replica)[engine]
    replica.RolloutReplicaRegistry.register(engine, partial(_with_offset, engine, load))


def _with_offset(engine: str, load: Callable[[], type[object]]) -> type[object]:
    with _loading:
        stock = load()
    return type(stock.__name__, (OffsetReplica, stock), {"server_mixin": facts_of(engine).server_mixin})


def register_adapter(engine: str, base: ModuleType) -> None:
    set_adapter(base, engine, f"{__name__}.{engine}")


def __getattr__(name: str) -> type[object]:
    """verl looks an adapter up here by name. Its base class needs the engine, so it is made then."""
    facts = facts_of(name)
    if facts.stock_adapter is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    stock = importlib.import_module(facts.stock_adapter).ServerAdapter
    mixins = [facts.sender_mixin] if facts.sender_mixin else []
    return type(stock.__name__, (OffsetAdapter, *mixins, stock), {})
