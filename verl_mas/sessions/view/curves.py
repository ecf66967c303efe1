"""The numbers of a run by step, for the curves on top."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from verl_mas.run_folder.metrics import Step
from verl_mas.sessions.view.index import Page


def curves_of(steps: Sequence[Step], pages: Iterable[Page]) -> dict[str, object]:
    """Those that the run logged; of a run without a file of metrics, the rewards of its sessions."""
    by_step = {step.number: step.values for step in steps} or _of_sessions(pages)
    numbers = sorted(by_step)
    names = sorted({name for values in by_step.values() for name in values})
    return {
        "steps": numbers,
        "values": {name: [_short(by_step[number].get(name)) for number in numbers] for name in names},
        "logged": bool(steps),
    }


def _short(value: float | None) -> float | None:
    """Five digits: a curve shows no more."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


def _of_sessions(pages: Iterable[Page]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for page in pages:
        rewards = [entry.reward for entry in page.entries if entry.reward is not None]
        if rewards:
            name = "val-core/sessions/reward/mean@1" if page.part.partition == "val" else "session/reward/mean"
            found.setdefault(page.part.step, {})[name] = fmean(rewards)
    return found
