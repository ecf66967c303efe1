"""The events with which a process reports that it takes or frees memory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

# Memory of a training process on its card.
CONTEXT = "context"  # CUDA's context; an engine also has one, with its CUDA graphs
SHARDS = "shards"  # the process's part of the float32 weights
GRADIENTS = "gradients"
ADAM = "adam"
OPTIMIZER_STEP = "optimizer step"  # temporary memory of Adam's step
UPDATE_BATCH = "update batch"  # activations, logits and gathered layers of a micro batch
SCORE_BATCH = "score batch"  # memory of a micro batch for log-probs, without gradients
BUCKET = "bucket"  # weights on their way to the engine
# Memory of an engine.
WEIGHTS = "weights"
KV = "kv cache"

Kind = Literal["trainer", "engine"]


@dataclass(frozen=True)
class Holder:
    """A process with memory on a card."""

    kind: Kind
    policy: str
    rank: int

    def __str__(self) -> str:
        return f"{self.kind} {self.rank} of {self.policy}"


@dataclass(frozen=True)
class Event:
    what: str
    """Name of the process's action, such as `sleep`; without a holder, the phase of the step that begins."""

    card: str = ""
    holder: Holder | None = None
    take: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Memory that the process must hold for this event."""

    empty_cache: bool = False
    """If true, PyTorch gives the freed memory that it keeps back to the card."""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of(cls, line: str) -> Event:
        fields: dict[str, Any] = json.loads(line)
        holder = fields.pop("holder")
        lists: dict[str, Any] = {name: tuple(fields.pop(name)) for name in ("take", "free", "needs")}
        return cls(holder=Holder(**holder) if holder else None, **lists, **fields)
