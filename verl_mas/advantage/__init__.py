"""Advantages per agent: one kernel, one small file per estimator. Importing this loads neither torch nor verl."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from verl_mas.advantage.options import AdvantageOptions

if TYPE_CHECKING:
    from verl_mas.advantage.broadcast import to_tokens, trained_tokens
    from verl_mas.advantage.estimator import ESTIMATORS, compute, options_for
    from verl_mas.advantage.record import AdvantageInput, AdvantageOutput

__all__ = [
    "ESTIMATORS",
    "AdvantageInput",
    "AdvantageOptions",
    "AdvantageOutput",
    "compute",
    "options_for",
    "to_tokens",
    "trained_tokens",
]

_NEEDS_TORCH = {
    "ESTIMATORS": "estimator",
    "compute": "estimator",
    "options_for": "estimator",
    "AdvantageInput": "record",
    "AdvantageOutput": "record",
    "to_tokens": "broadcast",
    "trained_tokens": "broadcast",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
