"""Several policies on one of verl's own engines: each policy numbers its replicas from an offset.

verl names servers, sockets and ports by the replica's rank, which starts at 0 for every policy. Here the replica, which
starts a server, and the adapter, which looks it up, add the offset of `EngineTag` to the rank. Without a tag they
behave like verl's own classes.
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
from verl_mas.engines import platform
from verl_mas.engines.facts import facts_of, load_class
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

# Number of calls that a server's actor can have open at once. verl allows 1,000; if that many requests wait, calls of
# `abort_all_requests`, `wake_up` and `resume_generation` cannot start (verl-project/verl#7990). An open call of an
# async actor is a coroutine and takes no thread.
OUTSTANDING = 100_000
# Engines are loaded under this lock, because policies start in parallel and verl's loader of SGLang sets an environment
# variable while it imports.
_loading = Lock()


class OffsetReplica(RolloutReplica):
    """Mixin for verl's replica classes, placed before them in the bases. It adds the policy's offset to the rank."""

    server_class: EngineClass
    server_mixin: type[object] | None = None

    def __init__(self, replica_rank: int, config: RolloutConfig, *args: Passed, **kwargs: Passed):
        self.offset = EngineTag.of(config).rank_offset
        if EngineTag.is_in(config):
            # verl would add the suffix to the server's name. Adapters look a server up by its rank alone, which is
            # unique.
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
        # verl takes workers from index world_size x rank on, so put placeholders for other policies' workers first.
        others = [None] * (self.offset * self.world_size)
        placed = SimpleNamespace(workers=[*others, *worker_group.workers])
        await super().init_hybrid(cast("RayWorkerGroup", placed))


class OffsetAdapter(BaseRollout):
    """Mixin for verl's adapter classes, placed before them in the bases. It adds the policy's offset to the rank."""

    def __init__(self, config: RolloutConfig, model_config: Passed, device_mesh: Passed, replica_rank: int = -1):
        if replica_rank == -1:
            size = gpus_of_replica(partial(getattr, config))
            replica_rank = int(os.environ["RANK"]) // size + EngineTag.of(config).rank_offset
        super().__init__(config, model_config, device_mesh, replica_rank)


def register_replica(engine: str, replica: ModuleType, on_cpu: str = "") -> None:
    """Register verl's replica class with `OffsetReplica` mixed in. On the CPU platform, register the class `on_cpu`
    instead if it is given."""
    if on_cpu and platform.selected():
        load = partial(load_class, on_cpu)
    else:
        # Use verl's own loader, because it also prepares the import of the engine.
        load = partial(_with_offset, engine, replicas(replica)[engine])
    replica.RolloutReplicaRegistry.register(engine, load)


def _with_offset(engine: str, load: Callable[[], type[object]]) -> type[object]:
    with _loading:
        stock = load()
    return type(stock.__name__, (OffsetReplica, stock), {"server_mixin": facts_of(engine).server_mixin})


def register_adapter(engine: str, base: ModuleType, on_cpu: str = "") -> None:
    set_adapter(base, engine, on_cpu if on_cpu and platform.selected() else f"{__name__}.{engine}")


def __getattr__(name: str) -> type[object]:
    """Make the adapter class of an engine when verl looks the class up by name. The class is not made earlier, because
    its base class imports the engine."""
    facts = facts_of(name)
    if facts.stock_adapter is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    stock = importlib.import_module(facts.stock_adapter).ServerAdapter
    mixins = [facts.sender_mixin] if facts.sender_mixin else []
    return type(stock.__name__, (OffsetAdapter, *mixins, stock), {})
