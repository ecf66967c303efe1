"""Which policy an engine serves: written by the trainer, read by the server and the adapter of the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from omegaconf import DictConfig, open_dict

from verl_mas.config.schema import DEFAULT_POLICY

# Where `rollout.custom` has `mas.shared_prefixes` for the training processes.
SHARED_PREFIXES = "shared_prefixes"


@dataclass(frozen=True)
class EngineTag:
    """Stored in `actor_rollout_ref.rollout.custom`, the only mapping of verl that both server and adapter get.

    A run without it has one policy, served by the engines of verl.
    """

    policy: str = DEFAULT_POLICY
    # The number of the policy's first replica. verl derives the names of servers, sockets and ports from it.
    rank_offset: int = 0
    time_sliced: bool = False  # Whether its engines and those of other policies use the GPU one policy at a time

    @staticmethod
    def is_in(rollout: Mapping[str, Any] | DictConfig) -> bool:
        """Whether the trainer of a team has written a tag."""
        return "policy" in (rollout.get("custom") or {})

    @classmethod
    def of(cls, rollout: Mapping[str, Any] | DictConfig) -> EngineTag:
        """From `actor_rollout_ref.rollout`, which verl passes as YAML, without `custom`, or as a dataclass."""
        custom = rollout.get("custom") or {}
        return cls(**{field.name: custom[field.name] for field in fields(cls) if field.name in custom})

    def write(self, view: DictConfig) -> None:
        """Write the tag into a policy's view of the configuration."""
        rollout = view.actor_rollout_ref.rollout
        with open_dict(view):
            rollout.custom = {**(rollout.get("custom") or {}), **asdict(self)}


def gpus_of_replica(value: Callable[[str], Any]) -> int:
    """`value`: that of a setting of `rollout`."""
    return math.prod(int(value(f"{kind}_parallel_size")) for kind in ("tensor_model", "data", "pipeline_model"))
