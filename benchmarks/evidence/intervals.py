"""Statistics of a few seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The 97.5 % quantile of Student's t by degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
SPIKE = 3.0
# The least number of earlier steps for a median.
MIN_STEPS = 5


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with half the width of its 95 % interval. A mean of one seed has no interval."""

    value: float
    half: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.value:.3f}" + (f" ± {self.half:.3f}" if self.half is not None else "")


def mean(values: Sequence[float]) -> Mean:
    if len(values) < 2:
        return Mean(values[0], None, len(values))
    error = statistics.stdev(values) / len(values) ** 0.5
    return Mean(statistics.fmean(values), STUDENT[len(values) - 2] * error, len(values))


def factor(ratios: Sequence[float]) -> str:
    """Return the geometric mean with its 95 % interval."""
    found = mean([math.log(ratio) for ratio in ratios])
    text = f"{math.exp(found.value):.2f}"
    if found.half is None:
        return text
    return f"{text} ({math.exp(found.value - found.half):.2f} to {math.exp(found.value + found.half):.2f})"


def spikes(norms: Sequence[float]) -> float:
    """Return the share of steps whose norm is more than three times the median norm of all earlier steps."""
    later = range(MIN_STEPS, len(norms))
    if not later:
        return 0.0
    return sum(norms[step] > SPIKE * statistics.median(norms[:step]) for step in later) / len(later)


def second_moment(norms: Sequence[float]) -> float:
    return statistics.fmean(norm * norm for norm in norms)
