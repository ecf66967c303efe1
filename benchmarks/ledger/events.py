"""The events by which a process takes and frees memory, in their order."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

# Memory of a training process on its card.
CONTEXT = "context"  # of CUDA; also of an engine, with its graphs
SHARDS = "shards"  # its part of the float32 weights
GRADIENTS = "gradients"
ADAM = "adam"
OPTIMIZER_STEP = "optimizer step"  # what Adam needs while it steps
UPDATE_BATCH = "update batch"  # activations, logits and gathered layers of a micro batch
SCORE_BATCH = "score batch"  # the same, without gradients
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
    """Of the process, such as `sleep`; without a holder: the phase of the step that begins."""

    card: str = ""
    holder: Holder | None = None
    take: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What the process must hold for this."""

    empty_cache: bool = False
    """Memory that PyTorch keeps for the process goes back to the card."""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of(cls, line: str) -> Event:
        fields: dict[str, Any] = json.loads(line)
        holder = fields.pop("holder")
        lists: dict[str, Any] = {name: tuple(fields.pop(name)) for name in ("take", "free", "needs")}
        return cls(holder=Holder(**holder) if holder else None, **lists, **fields)
