"""A tag that names the policy of an engine.

The trainer writes the tag. The engine's server reads it, and so does the `ServerAdapter`, which sends weights to the
server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from omegaconf import DictConfig, open_dict

from verl_mas.config.schema import DEFAULT_POLICY
from verl_mas.verl_.types import Untyped

# Key in `rollout.custom` that passes `mas.shared_prefixes` to the training processes.
SHARED_PREFIXES = "shared_prefixes"


@dataclass(frozen=True)
class EngineTag:
    """A tag in `actor_rollout_ref.rollout.custom`, the only mapping of verl that reaches both server and adapter.

    A run without a tag has one policy, served by verl's engines.
    """

    policy: str = DEFAULT_POLICY
    # The index of the policy's first replica. verl derives server names, socket names and ports from it.
    rank_offset: int = 0
    time_sliced: bool = False  # Whether the engines of this policy and of other policies take turns on their GPUs

    @staticmethod
    def is_in(rollout: Mapping[str, Untyped] | DictConfig) -> bool:
        """Whether the trainer of a team has written a tag."""
        return "policy" in (rollout.get("custom") or {})

    @classmethod
    def of(cls, rollout: Mapping[str, Untyped] | DictConfig) -> EngineTag:
        """Read the tag from `actor_rollout_ref.rollout`, which is a node of the configuration or verl's dataclass.
        Without `custom` in that section, the tag has its default values."""
        custom = rollout.get("custom") or {}
        return cls(**{field.name: custom[field.name] for field in fields(cls) if field.name in custom})

    def write(self, view: DictConfig) -> None:
        """Write the tag into a policy's view of the configuration."""
        rollout = view.actor_rollout_ref.rollout
        with open_dict(view):
            rollout.custom = {**(rollout.get("custom") or {}), **asdict(self)}


def gpus_of_replica(value: Callable[[str], Any]) -> int:
    """Return the number of GPUs per replica. `value` returns a setting of `rollout` by its name."""
    return math.prod(int(value(f"{kind}_parallel_size")) for kind in ("tensor_model", "data", "pipeline_model"))
