"""Select the tasks that a step trains on (`mas.filter`). A task is kept or dropped with all of its sessions."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, TypeAlias

from verl_mas.config.schema import FilterSpec
from verl_mas.errors import DataError
from verl_mas.trainer.step import in_order
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import RowKey, RowTags
from verl_mas.verl_.types import Fields

# The run ends after this many consecutive batches whose tasks were all dropped, because it would learn nothing.
EMPTY_BATCHES = 10
# Tolerance for rounding errors: in floats, 0.1 x 30 is above 3.
SLACK = 1e-9
# A function that takes a number of tasks, and returns the rows of this many ended tasks and verl's metrics.
Sample: TypeAlias = Callable[[int], tuple[Rows, dict[str, float]]]


@dataclass(frozen=True)
class SampledTask:
    """A task whose sessions have all ended."""

    uid: str
    reward: float  # mean of its sessions' team rewards
    spread: float  # standard deviation of its sessions' team rewards; 0 for a single session
    informative: bool  # whether `mas.filter.drop` keeps the task; always true if the filter drops no uniform tasks


def session_values(rows: Rows, by: str) -> dict[str, list[float]]:
    """Return the accuracies or team rewards of each task's sessions. A session's value is the mean over its rows.

    The rows of a session differ only if the workflow rewards single acts.
    """
    values = accuracies(rows) if by == "acc" else [RowTags.of(tag).team_reward for tag in rows.tags]
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, value in zip(map(RowKey.parse, rows.keys), values, strict=True):
        found[key.uid][key.session].append(value)
    return {uid: [fmean(of_rows) for of_rows in sessions.values()] for uid, sessions in found.items()}


def accuracies(rows: Rows) -> list[float]:
    extras: list[Fields] = data_plane.read(rows, [row.EXTRA_FIELDS]).pop(row.EXTRA_FIELDS).tolist()
    found: list[Any] = [(extra.get(row.REWARD_EXTRA_INFO) or {}).get("acc") for extra in extras]
    if None in found:
        value = f"mas.filter.by=acc, and row {rows.keys[found.index(None)]} is of a session without acc"
        fix = "return Outcome(info={'acc': ...}), or set mas.filter.by=team"
        raise DataError(value, rule="the workflow or the reward function gives each session its acc", fix=fix)
    return [float(accuracy) for accuracy in found]


class TaskFilter:
    """Sample the tasks of each step, and choose the tasks that are trained on.

    `with_advantage(rows)` returns the uids of the tasks in `rows` that have an advantage.
    """

    def __init__(self, spec: FilterSpec, with_advantage: Callable[[Rows], Collection[str]]):
        self._spec, self._with_advantage = spec, with_advantage
        self._size = 0  # tasks in a full batch of the current step
        self._sampled: list[SampledTask] = []  # tasks of the current step
        self._empty: list[list[SampledTask]] = []  # the latest consecutive batches whose tasks were all dropped

    def sample(self, size: int, sample: Sample, refill: Callable[[int], object]) -> tuple[Rows, dict[str, float]]:
        """Return the rows of all tasks sampled for a step, and metrics. `refill(n)` starts n further tasks."""
        if not self._spec.active:
            return sample(size)
        self._size, self._sampled = size, []
        rounds: list[Rows] = []
        metrics: Counter[str] = Counter()
        while missing := self._missing(len(rounds)):
            if rounds:
                refill(missing)
            rows, of_round = sample(missing)
            rounds.append(in_order(rows))
            metrics.update(of_round)
            self._add(rounds[-1])
        return data_plane.join(rounds), {**metrics, **self._metrics(len(rounds))}

    def _add(self, rows: Rows) -> None:
        informative, rewards = self._informative(rows), session_values(rows, "team")
        tasks = [SampledTask(uid, fmean(each), pstdev(each), uid in informative) for uid, each in rewards.items()]
        self._sampled += tasks
        self._empty = [] if any(task.informative for task in tasks) else [*self._empty, tasks]
        if len(self._empty) == EMPTY_BATCHES:
            means = [task.reward for batch in self._empty for task in batch]
            low, high = f"{min(means):.3g}", f"{max(means):.3g}"
            seen = f"{len(means)} tasks, of a mean team reward of {low}" + (f" to {high}" if high != low else "")
            raise DataError(
                f"mas.filter.drop=uniform has dropped every task of {EMPTY_BATCHES} batches in a row: {seen}",
                rule=f"mas.filter.by={self._spec.by}: by score, a row has an advantage; else, sessions differ",
                fix="read a session record; then take tasks of another difficulty, or raise "
                "actor_rollout_ref.rollout.n or the temperature. With mas.filter.drop=null the run continues, and its "
                "steps change nothing",
            )

    def _informative(self, rows: Rows) -> Collection[str]:
        """Return the uids of the tasks that `mas.filter.drop` keeps."""
        if self._spec.drop and self._spec.by == "score":
            return self._with_advantage(rows)
        values = session_values(rows, self._spec.by if self._spec.drop else "team")
        return {uid for uid, each in values.items() if not (self._spec.drop and math.isclose(min(each), max(each)))}

    def trained_indices(self, rows: Rows) -> list[int]:
        """Return the indices of the rows that are trained on."""
        if not self._spec.active:
            return list(range(len(rows)))
        kept = {task.uid for task in self._kept}
        return [i for i, key in enumerate(rows.keys) if RowKey.parse(key).uid in kept]

    @property
    def _kept(self) -> list[SampledTask]:
        """The tasks that are trained on."""
        informative = [task for task in self._sampled if task.informative]
        share = self._spec.keep_share
        if share is not None:
            informative.sort(key=lambda task: -task.spread)
            informative = informative[: max(1, math.floor(share * len(self._sampled) + SLACK))]
        return informative[: self._size]

    def _missing(self, rounds: int) -> int:
        """Return the number of tasks to sample in the next round; 0: no further round. `rounds`: rounds so far."""
        if rounds >= (self._spec.max_rounds if self._spec.refill else 1):
            return 0
        missing = self._size - len(self._kept)
        share = self._spec.keep_share
        if missing and share is not None and rounds:
            missing = max(missing, math.ceil(self._size / share - SLACK) - len(self._sampled))
        return missing

    def _metrics(self, rounds: int) -> dict[str, float]:
        kept = self._kept
        counts = {"kept": len(kept), "dropped": len(self._sampled) - len(kept), "rounds": rounds}
        spreads = {
            name: fmean(task.spread for task in tasks)
            for name, tasks in (("spread", self._sampled), ("spread_kept", kept))
            if tasks
        }
        return {f"filter/{name}": value for name, value in {**counts, **spreads}.items()}
