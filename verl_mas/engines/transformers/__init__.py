"""rollout.name=transformers: the embedded engine, for machines where no other engine runs.

Importing this is free; verl asks for the classes by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_mas.engines.facts import ENGINES, EngineFacts

if TYPE_CHECKING:
    from verl_mas.engines.transformers.replica import TransformersReplica

ENGINE = "transformers"


def register_replica(_module: Any = None) -> None:
    """Make verl's `RolloutReplicaRegistry` know the engine's servers."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(ENGINE, _load_replica)


def register_adapter(_module: Any = None) -> None:
    """Make verl's actor workers know the engine's adapter."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY

    _ROLLOUT_REGISTRY[(ENGINE, "async")] = "verl_mas.engines.transformers.adapter.ServerAdapter"


def _load_replica() -> type[TransformersReplica]:
    from verl_mas.engines.transformers.replica import TransformersReplica

    return TransformersReplica


def server_name(policy: str, replica_rank: int, suffix: str = "") -> str:
    """The Ray actor name of one replica's server: two policies on one cluster do not meet."""
    return f"{ENGINE}_server_{policy}_{replica_rank}{suffix}"


ENGINES.register(ENGINE)(
    EngineFacts(package="transformers", register_replica=register_replica, register_adapter=register_adapter)
)
