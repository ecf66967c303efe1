"""The report of a run: a summary of its settings, the metrics to watch, a table of its agents, and its findings."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import accumulate, groupby
from statistics import fmean

from omegaconf import OmegaConf

from verl_mas.errors import DataError
from verl_mas.results.sessions.run import RunFolder
from verl_mas.results.sessions.view.page import report_page
from verl_mas.run_folder.about import ATTEMPTS, ENDED, attempts
from verl_mas.run_folder.metrics.file import Step, series
from verl_mas.run_folder.metrics.findings import STEPS, findings, held
from verl_mas.run_folder.metrics.names import CORE, agent, agents_in, control_of, key_of_policy, policies_in, policy
from verl_mas.run_folder.metrics.table import TO_WATCH
from verl_mas.run_folder.metrics.trends import RunFinding, Trends
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
