"""A finding: what the metrics of some steps say is wrong with a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# The values of a step, by name. None, null in a metrics file, counts as NaN.
Metrics: TypeAlias = Mapping[str, float | None]
EVERYONE = "team"


@dataclass(frozen=True)
class RunFinding:
    """`kind` and `name` identify it from step to step; `text` has the likely cause and what to do."""

    kind: str
    name: str
    text: str


def mean(series: Sequence[float]) -> float:
    return sum(series) / len(series) if series else math.nan
