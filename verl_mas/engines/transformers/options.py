"""`actor_rollout_ref.rollout.engine_kwargs.transformers`. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_mas.config.values import Count, Positive, load_dataclass

PATH = "actor_rollout_ref.rollout.engine_kwargs.transformers"


@dataclass(frozen=True)
class Options:
    """Options of the embedded engine."""

    threads: Count = 1
    """Torch threads of the server. Servers and trainers share the cores: one each suits a small machine."""

    cache_gib: Positive = 2.0
    """Memory for keys and values; decides how many sequences run at once."""

    @classmethod
    def of(cls, engine_kwargs: Mapping[str, Mapping[str, object]] | None) -> Options:
        return load_dataclass(cls, (engine_kwargs or {}).get("transformers"), PATH)
