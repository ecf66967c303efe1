"""Predictions, which were written before the runs, each with the number that decides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.evidence.arms import SEEDS, Arm
from benchmarks.evidence.intervals import Mean, mean
from benchmarks.evidence.tables import Results, Run, control, gained, last, line, table

COLUMNS = ("claim", "task", "predicted", "result, 95 % interval", "verdict", "seeds", "control", "arms", "hours")


@dataclass(frozen=True)
class Number:
    """A number from the results of `arms`, and the name of the control with which it is compared."""

    of: Callable[[Results], Mean | None]
    arms: tuple[Arm, ...]
    control: str

    def __call__(self, results: Results) -> Mean | None:
        return self.of(results)


@dataclass(frozen=True)
class Claim:
    """A prediction: the number lies between `low` and `high`."""

    text: str
    number: Number
    low: float = float("-inf")
    high: float = float("inf")
    seeds: int = SEEDS

    def verdict(self, found: Mean | None) -> str:
        """Return "held" or "refuted" if the whole interval is inside or outside of the prediction.

        Until all seeds have run, return how many have run.
        """
        if found is None:
            return "not yet run"
        if found.half is None or found.seeds < self.seeds:
            return f"{found.seeds} of {self.seeds} seeds"
        below, above = found.value - found.half, found.value + found.half
        if self.low <= below and above <= self.high:
            return "held"
        if above < self.low or below > self.high:
            return "refuted"
        return "not shown"

    @property
    def predicted(self) -> str:
        if self.low == float("-inf"):
            return f"below {self.high:g}"
        return f"above {self.low:g}" if self.high == float("inf") else f"{self.low:g} to {self.high:g}"


def success(arm: Arm, number: Callable[[Run], float] = last) -> Number:
    shuffled = "shuffled" if "shuffled" in arm.trial.controls else ""
    return Number(lambda results: results.over_seeds(arm.name, number), (arm,), shuffled)


def gain(arm: Arm) -> Number:
    """Return the last measured success minus the first measured success."""
    return Number(lambda results: results.over_seeds(arm.name, gained), (arm,), "untrained")


def gap(arm: Arm, other: Arm, number: Callable[[Run], float] = last) -> Number:
    """Return the difference between two arms with the same seed, in the last success or in another number."""
    return Number(lambda results: _mean(results.paired(arm.name, other.name, number)), (arm, other), f"`{other.name}`")


def influence(arm: Arm, shuffled: str = "shuffled") -> Number:
    """Return the last success minus the last success with messages from other tasks."""
    under = control(shuffled)
    return Number(lambda results: results.over_seeds(arm.name, lambda run: last(run) - under(run)), (arm,), shuffled)


def interaction(more: tuple[Arm, Arm], less: tuple[Arm, Arm]) -> Number:
    """Return the gap between the arms of `more` minus the gap between the arms of `less`, by seed."""

    def found(results: Results) -> Mean | None:
        arms = [results.runs.get(arm.name, {}) for arm in (*more, *less)]
        seeds = sorted(set.intersection(*(set(runs) for runs in arms)))
        ends = [[last(runs[seed]) for runs in arms] for seed in seeds]
        return _mean([(a - b) - (c - d) for a, b, c, d in ends])

    return Number(found, (*more, *less), f"`{less[0].name}` less `{less[1].name}`")


def _mean(values: list[float]) -> Mean | None:
    return mean(values) if values else None


def claims_table(results: Results, by_task: Iterable[tuple[str, Iterable[Claim]]]) -> str:
    return table(COLUMNS, [_row(results, task, claim) for task, claims in by_task for claim in claims])


def _row(results: Results, task: str, claim: Claim) -> str:
    found, number = claim.number(results), claim.number
    # The arms of an evaluation include the training runs of its policies, so their hours count as well.
    arms = list(dict.fromkeys(name for arm in number.arms for name in (*arm.needs, arm.name)))
    ran = [claim.text, task, claim.predicted, found or "", claim.verdict(found), found.seeds if found else 0]
    return line([*ran, number.control, f"`{' '.join(arms)}`", f"{results.hours(arms):.1f}"])
