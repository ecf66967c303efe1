"""Comparison of two runs: their metrics step by step, and their validations task by task."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import TypeAlias

from verl_mas.errors import DataError
from verl_mas.results.sessions.reader import SessionIndex
from verl_mas.results.sessions.report import LAST, RunReport, table, watched
from verl_mas.results.sessions.view.page import report_page
from verl_mas.run_folder.metrics.file import Step
from verl_mas.run_folder.metrics.names import CORE
from verl_mas.run_folder.session_files import VAL
from verl_mas.trainer.pass_at_k import interval

ERRORS = 1.96  # half width of the 95 % interval of a normal distribution, in standard errors
ACC = "acc"  # verl's name of an accuracy in the info of an outcome
Task: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class MetricDifference:
    """The values of a metric in run A and in run B, and the interval of their difference, B - A."""

    what: str
    a: float
    b: float
    low: float | None
    high: float | None
    over: str  # the paired values behind the interval, such as "10 steps" or "50 tasks"

    @property
    def row(self) -> tuple[str, ...]:
        interval = "" if self.low is None or self.high is None else f"{self.low:+.3g} to {self.high:+.3g}"
        return self.what, f"{self.a:.3g}", f"{self.b:.3g}", f"{self.b - self.a:+.3g}", interval, self.over


@dataclass(frozen=True)
class Comparison:
    a: RunReport
    b: RunReport
    differences: list[MetricDifference]

    def table(self) -> list[str]:
        head = ("", "A", "B", "B - A", "95 % interval", "over")
        return table(head, [one.row for one in self.differences])

    def html(self) -> str:
        """Render one page: the differences, the curves of both runs, and their replies to one task at up to four
        steps."""
        runs = [f"A {self.a.run.folder}", f"B {self.b.run.folder}"]
        return report_page([self.a.run, self.b.run], {"Differences": self.table(), "Runs": runs})

    def text(self) -> str:
        lines = [
            f"A {self.a.run.folder}",
            f"B {self.b.run.folder}",
            "",
            *self.table(),
            "",
            f"over steps: means of the last {LAST} steps that both have, paired by step; normal interval of the mean "
            "difference. Steps of one run depend on each other, and another seed is not in it: a run more each says "
            "more than this interval.",
            "over tasks: the last validation of which both recorded all sessions, paired by task; bootstrap interval "
            "over the tasks.",
        ]
        return "\n".join(lines) + "\n"

    def json(self) -> dict[str, object]:
        differences = [asdict(each) for each in self.differences]
        return {"a": str(self.a.run.folder), "b": str(self.b.run.folder), "differences": differences}


def compare(a: RunReport, b: RunReport) -> Comparison:
    """Compare two runs. Raises DataError if they have no common metric."""
    differences = [*by_task(a, b), *by_step(a.steps, b.steps)]
    if not differences:
        value = f"{a.run.folder} and {b.run.folder} have no metric in common at the same step"
        rule = "runs are compared by the metrics to watch of the steps that both have"
        raise DataError(value, rule=rule, fix="compare runs of the same task, of which both have logged these steps")
    return Comparison(a, b, differences)


def by_step(a: Sequence[Step], b: Sequence[Step]) -> list[MetricDifference]:
    other = {step.number: step.values for step in b}
    differences = []
    for key in [key for key in watched(a) if key in watched(b)]:
        both = [step for step in a if key in step.values and key in other.get(step.number, {})]
        pairs = [(step.values[key], other[step.number][key]) for step in both]
        pairs = [pair for pair in pairs if all(map(math.isfinite, pair))][-LAST:]
        if not pairs:
            continue
        before, after = (fmean(values) for values in zip(*pairs, strict=True))
        low = high = None
        if len(pairs) > 1:
            half = ERRORS * stdev(b - a for a, b in pairs) / math.sqrt(len(pairs))
            low, high = after - before - half, after - before + half
        over = f"{len(pairs)} steps" if len(pairs) > 1 else "1 step"
        differences.append(MetricDifference(key, before, after, low, high, over))
    return differences


def by_task(a: RunReport, b: RunReport) -> list[MetricDifference]:
    """Compare success by data source, in the last validation of which both runs recorded all sessions."""
    steps = [{step.number for step in run.steps if any(key.startswith(CORE) for key in step.values)} for run in (a, b)]
    for step in sorted(steps[0] & steps[1], reverse=True):
        theirs = successes(b, step)
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for task, value in successes(a, step).items():
            if task in theirs:
                pairs[task[0]].append((value, theirs[task]))
        if pairs:
            differences = []
            for source, own in pairs.items():
                what, (before, after) = f"success of {source}, step {step}", map(fmean, zip(*own, strict=True))
                low, high = interval([b - a for a, b in own])
                differences.append(MetricDifference(what, before, after, low, high, f"{len(own)} tasks"))
            return differences
    return []


def successes(report: RunReport, step: int) -> dict[Task, float]:
    """Map each task (data source and name) to its success: the mean of `acc` over its sessions. For a session without
    `acc`, the team's reward is used.

    A failed session counts as 0, as in validation. If only a sample of the sessions was recorded, the result is empty,
    because the sample favours the best and the worst sessions and its mean would be biased.
    """
    folder = report.run.trajectories
    if folder is None or not (folder / VAL).is_dir():
        return {}
    index = SessionIndex(folder, partitions=(VAL,), step=step)
    found: dict[Task, list[float]] = defaultdict(list)
    for record in index.records() if not index.left_out else ():
        task, outcome = record["task"], record["outcome"]
        value = (outcome["info"] or {}).get(ACC, outcome["reward"]) if record["status"] == "finished" else 0.0
        if isinstance(value, int | float):
            # A task is identified by its index in its file, or by its messages if it has no index.
            name = task["messages"] if task["index"] is None else task["index"]
            found[str(task["data_source"]), str(name)].append(float(value))
    return {task: fmean(values) for task, values in found.items()}
