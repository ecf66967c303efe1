"""The sizes of single things, by the formulas of `verl_mas.planning`. Bytes per card."""

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
    """Of the policies of a run."""

    card: float
    policies: Mapping[str, Policy]

    @property
    def limit(self) -> float:
        return SAFE * self.card

    def trainer(self, name: str) -> dict[str, float]:
        policy = self.policies[name]
        model, trained = policy.model, policy.training
        assert trained is not None, f"{name} is frozen"
        return {
            CONTEXT: training.CONTEXT,
            SHARDS: training.parameters(model, trained),
            GRADIENTS: training.gradients(model, trained),
            ADAM: training.adam(model, trained),
            OPTIMIZER_STEP: training.ADAM_STEP * training.gradients(model, trained),
            UPDATE_BATCH: sum(training.updated(model, trained).values()),
            SCORE_BATCH: sum(training.scored(model, trained).values()),
            BUCKET: float(policy.serving.bucket + trained.element * model.largest),
        }

    def engine(self, name: str, free: float) -> dict[str, float]:
        """Of an engine that starts when so much of the card is free."""
        model, served = self.policies[name].model, self.policies[name].serving
        return {
            CONTEXT: sum(serving.beside(served).values()),
            WEIGHTS: serving.weights(model, served),
            KV: serving.kv_cache(model, served, self.card, free),
        }

    def cannot_start(self, name: str, free: float) -> str:
        """Why an engine does not start when so much of the card is free; empty if it does."""
        served = self.policies[name].serving
        if not served.memory.of_free and served.fraction is not None and served.fraction * self.card > free:
            return f"it takes {served.fraction} of the card, and less is free"
        return "" if self.engine(name, free)[KV] > 0 else "its weights leave nothing for a KV cache"


def write_sizes(path: Path, sizes: Sizes) -> None:
    path.write_bytes(pickle.dumps(sizes))


def read_sizes(path: Path) -> Sizes:
    sizes: Sizes = pickle.loads(path.read_bytes())  # what this run's command wrote
    return sizes
