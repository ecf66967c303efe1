"""The bytes that each kind of memory takes on a card, from the formulas of `verl_mas.planning`."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ledger.events import (
    ADAM,
    BUCKET,
    CONTEXT,
    GRADIENTS,
    KV,
    OPTIMIZER_STEP,
    SCORE_BATCH,
    SHARDS,
    UPDATE_BATCH,
    WEIGHTS,
)
from verl_mas.planning import serving, training
from verl_mas.planning.hardware import SAFE
from verl_mas.planning.load import Policy


@dataclass(frozen=True)
class Sizes:
    """The sizes of memory for the policies of a run."""

    card: float
    policies: Mapping[str, Policy]

    @property
    def limit(self) -> float:
        return SAFE * self.card

    def trainer(self, name: str) -> dict[str, float]:
        policy = self.policies[name]
        assert policy.trains, f"{name} is frozen"
        return {
            CONTEXT: training.CONTEXT,
            SHARDS: training.parameters(policy),
            GRADIENTS: training.gradients(policy),
            ADAM: training.adam(policy),
            OPTIMIZER_STEP: training.ADAM_STEP * training.gradients(policy),
            UPDATE_BATCH: sum(training.updated(policy).values()),
            SCORE_BATCH: sum(training.scored(policy).values()),
            BUCKET: float(policy.bucket + policy.element * policy.model.largest),
        }

    def engine(self, name: str, free: float) -> dict[str, float]:
        """Return the sizes of an engine that starts when this much of the card is free."""
        policy = self.policies[name]
        return {
            CONTEXT: sum(serving.beside(policy).values()),
            WEIGHTS: serving.weights(policy),
            KV: serving.kv_cache(policy, self.card, free),
        }

    def cannot_start(self, name: str, free: float) -> str:
        """Return why an engine does not start when this much of the card is free; empty if it starts."""
        served = self.policies[name]
        if not served.memory.of_free and served.fraction is not None and served.fraction * self.card > free:
            return f"it takes {served.fraction} of the card, and less is free"
        return "" if self.engine(name, free)[KV] > 0 else "its weights leave nothing for a KV cache"


def write_sizes(path: Path, sizes: Sizes) -> None:
    path.write_bytes(pickle.dumps(sizes))


def read_sizes(path: Path) -> Sizes:
    sizes: Sizes = pickle.loads(path.read_bytes())  # this run's own command wrote the file
    return sizes
