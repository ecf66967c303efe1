"""Unbiased pass@k, with a bootstrap interval over the tasks."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from verl_mas.run_folder.metrics.names import control_of

RESAMPLES = 1000
LEVEL = 0.95
# The lowest accuracy or score of a session that has solved its task.
SOLVED = 1.0


def pass_at_k(sessions: int, solved: int, k: int) -> float:
    """The probability that at least one of k sessions, sampled without replacement, solved the task.

    The formula 1 - C(n-c, k) / C(n, k) is computed as a product, so that nothing overflows (Chen et al., arXiv
    2107.03374).
    """
    if not 1 <= k <= sessions:
        raise ValueError(f"k={k} must be between 1 and the number of sessions, {sessions}")
    failed = sessions - solved
    if failed < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(failed + 1, sessions + 1)))


def ks(sessions: int) -> list[int]:
    """Return the values of k to report: 1, 2, 4, ... and the number of sessions."""
    powers = [2**i for i in range(sessions.bit_length()) if 2**i < sessions]
    return [*powers, sessions]


def interval(per_task: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Bootstrap an interval of the mean over tasks."""
    values = np.asarray(per_task, dtype=float)
    picks = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    means = values[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def report(values_per_task: Sequence[Sequence[float]]) -> Iterator[tuple[str, float]]:
    """Yield the mean of the tasks' means, and pass@k for every k of `ks`, each with an interval.

    The task with the fewest sessions limits k.
    """
    sessions = min((len(task) for task in values_per_task), default=0)
    if not sessions:
        return
    yield from with_interval(f"mean@{sessions}", [float(np.mean(task)) for task in values_per_task])
    solved = [(len(task), sum(value >= SOLVED for value in task)) for task in values_per_task]
    for k in ks(sessions):
        yield from with_interval(f"pass@{k}", [pass_at_k(n, right, k) for n, right in solved])


def with_interval(name: str, per_task: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Yield the mean over tasks, and its interval."""
    low, high = interval(per_task)
    yield name, float(np.mean(per_task))
    yield f"{name}/low", low
    yield f"{name}/high", high


def mean_of_sets(sets: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average the measures over test sets, with equal weights. Intervals and control sets are skipped."""
    reports = [report for source, report in sets.items() if not control_of(source, sets)]
    if len(reports) < 2:
        return {}
    names = [name for name in reports[0] if "/" not in name and all(name in each for each in reports)]
    return {name: float(np.mean([each[name] for each in reports])) for name in names}
