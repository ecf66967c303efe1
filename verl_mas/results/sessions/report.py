"""The report of a run: a summary of its settings, the metrics to watch, a table of its agents, and its findings.

This module also compares two runs: their metrics step by step, and their validations task by task.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import accumulate, groupby
from statistics import fmean, stdev
from typing import TypeAlias

from omegaconf import OmegaConf

from verl_mas.errors import DataError
from verl_mas.results.sessions.reader import SessionIndex
from verl_mas.results.sessions.run import RunFolder
from verl_mas.results.sessions.view.page import report_page
from verl_mas.run_folder.about import ATTEMPTS, ENDED, attempts
from verl_mas.run_folder.metrics.file import Step, series
from verl_mas.run_folder.metrics.findings import STEPS, findings, held
from verl_mas.run_folder.metrics.names import CORE, agent, agents_in, control_of, key_of_policy, policies_in, policy
from verl_mas.run_folder.metrics.table import TO_WATCH
from verl_mas.run_folder.metrics.trends import RunFinding, Trends
from verl_mas.run_folder.session_files import VAL
from verl_mas.trainer.pass_at_k import interval
from verl_mas.trainer.timeline import FILE, read_timeline, start_seconds
from verl_mas.util.text import sparkline

LAST = 10  # tables show means over this number of last steps
CURVE = 24  # width of a curve in characters, chosen so that most lines fit a terminal
# Column of the table of agents -> the metric of an agent.
COLUMNS = {
    "reward": "reward/score",
    "malformed": "malformed",
    "advantage 0": "advantage/zero",
    "uniform": "group/groups_uniform",
    "signal": "group/signal_share",
    "length": "length/response",
}
GRAD_NORM, SHARED = "actor/grad_norm", "rows/shared_tokens"
ERRORS = 1.96  # half width of the 95 % interval of a normal distribution, in standard errors
ACC = "acc"  # verl's name of an accuracy in the info of an outcome
Task: TypeAlias = tuple[str, str]
Interval: TypeAlias = Callable[[Sequence[float]], tuple[float | None, float | None]]
FRAME = "width:100%;height:40em;border:0"


@dataclass(frozen=True)
class HeldFinding(RunFinding):
    """A finding that held in all steps from `first` to `last`."""

    first: int
    last: int
    holds: bool  # whether it still holds at the last step

    @property
    def line(self) -> str:
        when = f"steps {self.first} to {self.last}" if self.first < self.last else f"step {self.last}"
        return f"{when}{'' if self.holds else ' (no longer)'}: {self.text}"


@dataclass(frozen=True, repr=False)
class RunReport:
    run: RunFolder
    steps: list[Step]
    found: list[HeldFinding]

    @property
    def training(self) -> list[Step]:
        return [step for step in self.steps if agents_in(step.values)]

    @property
    def start(self) -> dict[str, float]:
        """Return the seconds of each part of the last start; empty without a timeline."""
        events = read_timeline(self.run.folder) if (self.run.folder / FILE).is_file() else []
        return {part.replace("_", " "): seconds for part, seconds in start_seconds(events).items()}

    def text(self) -> str:
        parts = [self.header(), self.curves(), self.agents(), self.says()]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def __repr__(self) -> str:
        return f"<RunReport of {self.run.folder}: {len(self.steps)} steps>"

    def html(self) -> str:
        """Render one page: findings, agents, start, curves, and one task at up to four steps."""
        return report_page([self.run], {"Findings": self.says(), "Agents": self.agents(), "Run": self.header()})

    def _repr_html_(self) -> str:
        """Render the page in a frame, for notebooks."""
        return f'<iframe sandbox="allow-scripts" style="{FRAME}" srcdoc="{escape(self.html())}"></iframe>'

    def header(self) -> list[str]:
        lines = [f"run {self.run.folder}"]
        starts = attempts(self.run.about)
        if not starts:
            lines.append("  without run.yaml: its command, settings and versions are not recorded")
        for number, start in enumerate(starts, 1):
            resumed, ended = start.get("resumed_from"), start.get(ENDED)
            begin = "from the beginning" if resumed is None else f"resumed from step {resumed}"
            end = "trains, or was killed" if number == len(starts) else "was killed"
            if isinstance(ended, dict):
                end = f"{ended.get('by')} at {ended.get('at')}, step {ended.get('step')}"
            lines.append(f"  start {number} of {len(starts)}: {start.get('started')} {begin}; {end}")
        if starts:
            lines += [f"  {name:10} {value}" for name, value in _settings(self.run, starts[-1]) if value]
        if self.start:
            lines.append(
                f"  {'start':10} {', '.join(f'{part} {seconds:.1f} s' for part, seconds in self.start.items())}"
            )
        recent = [step.values for step in self.training[-LAST:]]
        for name in dict.fromkeys(one for values in recent for one in policies_in(values)):
            if share := _mean_of(recent, [policy(name, SHARED)]):
                lines.append(
                    f"  {'prefixes':10} {share:.0%} of the tokens of {name}'s updates are shared: computed once"
                )
        numbers = [step.number for step in self.training]
        lines.append(f"  {'steps':10} {_range(numbers)}, read from {self.run.metrics}")
        return lines

    def curves(self) -> list[str]:
        rows = []
        sources = {key.split("/")[1] for step in self.steps for key in step.values if key.startswith(CORE)}
        for key in watched(self.steps):
            numbers, values = series(self.steps, key)
            curve = sparkline(values, CURVE)
            base = control_of(key.split("/")[1], sources) if key.startswith(CORE) else None
            name = f"{key} (control of {base})" if base else key
            rows.append((name, f"{values[0]:.3g}", f"{values[-1]:.3g}", curve, _range(numbers)))
        return table(("to watch", "first", "last", "", "steps"), rows)

    def agents(self) -> list[str]:
        rows = []
        for name, row in self.agent_table().items():
            rows.append((name, *("-" if value is None else f"{value:.3g}" for value in row.values())))
        recent = len(self.training[-LAST:])
        lines = table(("agent", *COLUMNS, "grad norm"), rows)
        return [f"mean of the last {recent} steps", *lines] if rows else []

    def agent_table(self) -> dict[str, dict[str, float | None]]:
        recent = [step.values for step in self.training[-LAST:]]
        trained = list(dict.fromkeys(one for values in recent for one in policies_in(values)))
        rows: dict[str, dict[str, float | None]] = {}
        for name in dict.fromkeys(one for values in recent for one in agents_in(values)):
            rows[name] = {column: _mean_of(recent, [agent(name, key)]) for column, key in COLUMNS.items()}
            of = str(self.run.agent(name).get("policy") or (trained[0] if len(trained) == 1 else ""))
            norms = [key_of_policy(recent[-1], of, GRAD_NORM)] if of in trained else []
            rows[name]["grad norm"] = _mean_of(recent, norms)
        return rows

    def says(self) -> list[str]:
        if not self.training:
            return ["findings: none, as no step has been trained"]
        if len(self.training) < STEPS:
            return [f"findings: none, as they need {STEPS} steps"]
        if not self.found:
            return ["findings: none. docs/train/trainer.md lists what a run is searched for"]
        return ["findings", *(f"  - {one.line}" for one in self.found)]

    def json(self) -> dict[str, object]:
        by_step = {}
        for key in watched(self.steps):
            points = zip(*series(self.steps, key), strict=True)
            by_step[key] = {str(number): value if math.isfinite(value) else None for number, value in points}
        return {
            "folder": str(self.run.folder),
            "metrics": str(self.run.metrics),
            "attempts": self.run.about.get(ATTEMPTS, []),
            "start": self.start,
            "steps": [step.number for step in self.training],
            "watched": by_step,
            "agents": self.agent_table(),
            "findings": [asdict(one) for one in self.found],
        }


def report(run: RunFolder) -> RunReport:
    """Make the report of a run. Raises DataError if the run has no readable metrics."""
    steps = run.steps()
    if not steps:
        rule = "a run writes them there after each step"
        raise DataError(f"{run.folder} has no metrics: nothing in {run.metrics}", rule=rule, fix=run.when_empty)
    learn = []
    for name in dict.fromkeys(name for step in steps for name in agents_in(step.values)):
        # An agent without settings in the configuration counts as trained.
        own = run.agent(name)
        of = run.policies.get(str(own.get("policy"))) or {}
        frozen = of.get("trainable") is False or of.get("remote") or of.get("snapshot")
        if own.get("trainable") is not False and not frozen:
            learn.append(name)
    return RunReport(run, steps, over(steps, learn))


def over(steps: Sequence[Step], agents: Sequence[str] | None = None) -> list[HeldFinding]:
    """Find the problems of a whole run, each with the longest range of steps in which it held."""
    training = [step for step in steps if agents_in(step.values)]
    values = list(accumulate((step.values for step in training), held))
    found: dict[tuple[str, str], list[tuple[int, RunFinding]]] = defaultdict(list)
    for end in range(STEPS, len(training) + 1):
        for one in findings(values[end - STEPS : end], agents):
            found[one.kind, one.name].append((end, one))
    lasting = []
    for (kind, name), places in found.items():
        first, last = _longest([end for end, _ in places])
        begin = first - STEPS
        whole = [one for one in findings(values[begin:last], agents) if (one.kind, one.name) == (kind, name)]
        text = whole[0].text if whole else dict(places)[last].text
        holds = places[-1][0] == len(training)
        lasting.append(HeldFinding(kind, name, text, training[begin].number, training[last - 1].number, holds))
    return sorted([*lasting, *_trends(steps)], key=lambda one: (not one.holds, one.first - one.last))


def _trends(steps: Sequence[Step]) -> list[HeldFinding]:
    """Find trends over the whole run. The text of each trend describes the last step at which the trend held."""
    trends = Trends()
    values = accumulate((step.values for step in steps), held)
    latest = {
        (one.kind, one.name): (one, step.number)
        for step, metrics in zip(steps, values, strict=True)
        for one in trends.add(metrics)
    }
    first, last = steps[0].number, steps[-1].number
    return [HeldFinding(one.kind, one.name, one.text, first, number, number == last) for one, number in latest.values()]


def _longest(ends: Sequence[int]) -> tuple[int, int]:
    """Return the ends of the longest range of consecutive numbers; the later range wins a tie."""
    by_range = groupby(enumerate(ends), lambda pair: pair[1] - pair[0])
    ranges = [[end for _, end in consecutive] for _, consecutive in by_range]
    longest = max(reversed(ranges), key=len)
    return longest[0], longest[-1]


def watched(steps: Sequence[Step]) -> list[str]:
    """Return the metrics to watch that a run has, in the order of the table."""
    keys = dict.fromkeys(key for step in steps for key in step.values)
    return [key for metric in TO_WATCH for key in keys if metric.expression.fullmatch(key)]


def _settings(run: RunFolder, start: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    yield "command", start.get("command")
    versions, git, cluster = (start.get(name) for name in ("versions", "git", "cluster"))
    if isinstance(versions, dict):
        yield "versions", ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    if isinstance(git, dict):
        changed = git.get("changed_files") or []
        yield "git", f"{str(git.get('commit'))[:12]} on {git.get('branch')}, {len(list(changed))} changed files"
    if isinstance(cluster, dict):
        yield "cluster", ", ".join(f"{name} {value}" for name, value in cluster.items() if value)
    if run.config is not None:
        names = ("algorithm.adv_estimator", "mas.workflow.name", "data.train_batch_size", "actor_rollout_ref.rollout.n")
        yield "settings", ", ".join(f"{name}={OmegaConf.select(run.config, name)}" for name in names)


def _mean_of(steps: Sequence[Mapping[str, float]], keys: Sequence[str]) -> float | None:
    values = [step[key] for step in steps for key in keys if key in step and math.isfinite(step[key])]
    return fmean(values) if values else None


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


@dataclass(frozen=True)
class MetricDifference:
    """The values of a metric in run A and in run B, and the interval of their difference, B - A."""

    what: str
    a: float
    b: float
    low: float | None
    high: float | None
    over: str  # the number of paired values behind the interval, such as "10 steps" or "50 tasks"

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
        if pairs := [pair for pair in pairs if all(map(math.isfinite, pair))][-LAST:]:
            differences.append(difference(key, pairs, normal_interval, "step"))
    return differences


def difference(what: str, pairs: Sequence[tuple[float, float]], interval: Interval, unit: str) -> MetricDifference:
    before, after = map(fmean, zip(*pairs, strict=True))
    low, high = interval([b - a for a, b in pairs])
    return MetricDifference(what, before, after, low, high, f"{len(pairs)} {unit}{'s' if len(pairs) > 1 else ''}")


def normal_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the interval of the mean of the values; None, None for a single value."""
    if len(values) == 1:
        return None, None
    half = ERRORS * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


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
            named = {f"success of {source}, step {step}": own for source, own in pairs.items()}
            return [difference(what, own, interval, "task") for what, own in named.items()]
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
