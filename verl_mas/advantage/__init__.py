"""Advantages per agent: one kernel, and one file per estimator. Importing this loads neither torch nor verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_mas.advantage.options import AdvantageOptions
from verl_mas.util.lazy import lazy

if TYPE_CHECKING:
    from verl_mas.advantage.estimator import ESTIMATORS, compute_advantages, options_for
    from verl_mas.advantage.kernel import to_tokens, trained_tokens
    from verl_mas.advantage.record import AdvantageInput, AdvantageOutput, RunningScores

__all__ = [
    "ESTIMATORS",
    "AdvantageInput",
    "AdvantageOptions",
    "AdvantageOutput",
    "RunningScores",
    "compute_advantages",
    "options_for",
    "to_tokens",
    "trained_tokens",
]

# These load torch.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "verl_mas.advantage.kernel": ("to_tokens", "trained_tokens"),
        "verl_mas.advantage.estimator": ("ESTIMATORS", "compute_advantages", "options_for"),
        "verl_mas.advantage.record": ("AdvantageInput", "AdvantageOutput", "RunningScores"),
    },
)
