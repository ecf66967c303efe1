"""Whose engine it is: what the trainer writes down and both ends of an engine, server and adapter, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from omegaconf import DictConfig, open_dict

from verl_mas.config.schema import DEFAULT_POLICY


@dataclass(frozen=True)
class EngineTag:
    """Travels as `actor_rollout_ref.rollout.custom`, the one mapping of verl's that reaches both ends.

    A run without one has one policy, and its engines are verl's own.
    """

    policy: str = DEFAULT_POLICY
    rank_offset: int = 0
    """Where the policy's replicas start to be numbered. verl names servers, sockets and ports by that number."""

    time_sliced: bool = False
    """Its engines take turns on the GPU with those of other policies."""

    @classmethod
    def of(cls, rollout: Mapping[str, Any] | DictConfig) -> EngineTag:
        """Of `actor_rollout_ref.rollout`, which verl hands out as its YAML, without a `custom`, or as a dataclass."""
        custom = rollout.get("custom") or {}
        return cls(**{field.name: custom[field.name] for field in fields(cls) if field.name in custom})

    def write(self, view: DictConfig) -> None:
        """Into a policy's view of the configuration."""
        rollout = view.actor_rollout_ref.rollout
        with open_dict(view):
            rollout.custom = {**(rollout.get("custom") or {}), **asdict(self)}
