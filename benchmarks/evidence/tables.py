"""Read the results of the runs, and make the tables and figures that all tasks share."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evidence.arms import Arm
from benchmarks.evidence.intervals import Mean, mean

FIGURES = "evidence/figures"
Run = dict[str, Any]
NOT_RUN = "Not yet run."
SIGNALS = ("signal_share", "inflation")


@dataclass(frozen=True)
class Results:
    """The runs of every arm by seed."""

    runs: dict[str, dict[int, Run]]

    @classmethod
    def read(cls, folder: Path) -> Results:
        runs: dict[str, dict[int, Run]] = defaultdict(dict)
        for file in sorted(folder.glob("*.json")):
            run = json.loads(file.read_text())
            runs[run["arm"]][run["seed"]] = run
        return cls(dict(runs))

    def of(self, arm: str) -> list[Run]:
        return [run for _, run in sorted(self.runs.get(arm, {}).items())]

    def paired(self, arm: str, other: str, number: Callable[[Run], float] | None = None) -> list[float]:
        """Return the number of `arm` minus that of `other`, for each seed of both. The default number is `last`."""
        mine, theirs, number = self.runs.get(arm, {}), self.runs.get(other, {}), number or last
        return [number(mine[seed]) - number(theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]

    def hours(self, arms: Iterable[str]) -> float:
        """Return the hours of all runs of these arms."""
        return sum(run.get("seconds", 0) for arm in arms for run in self.of(arm)) / 3600

    def over_seeds(self, arm: str, number: Callable[[Run], float]) -> Mean | None:
        runs = self.of(arm)
        return mean([number(run) for run in runs]) if runs else None


def first(run: Run) -> float:
    return next(iter(run["success"].values()))


def last(run: Run) -> float:
    return list(run["success"].values())[-1]


def gained(run: Run) -> float:
    return last(run) - first(run)


def control(name: str) -> Callable[[Run], float]:
    """Return a function that reads a run's last success under a control."""
    return lambda run: list(run["controls"][name].values())[-1]


def in_training(name: str) -> Callable[[Run], float]:
    """Return a function that averages a number in `Outcome.info` over all steps of a run."""
    return _over_steps(f"session/{name}/mean")


def replies(run: Run) -> float:
    return sum(sum(values) for key, values in run["series"].items() if key.endswith("rows/real"))


def tokens(run: Run) -> float:
    """Return the number of tokens generated for training, including those of probes."""
    return sum(run["series"]["session/generated_tokens"])


def line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([line(columns), "|---" * len(columns) + "|", *lines]) if lines else NOT_RUN


def difference(results: Results, arm: str, other: str) -> Mean | str:
    found = results.paired(arm, other) if arm != other else []
    return mean(found) if found else ""


def learning(results: Results, arms: Sequence[Arm], base: str, controls: Sequence[str] = ()) -> str:
    """Make a table of the success before and after training, the difference from the arm `base` on the same seeds, and
    the controls."""
    columns = ["arm", "seeds", "untrained", "trained", f"less `{base}`, paired", *controls, "tokens generated"]
    lines = []
    for arm in arms:
        if not results.of(arm.name):
            continue
        cells: list[Any] = [
            f"`{arm.name}`",
            len(results.of(arm.name)),
            _untrained(results.of(arm.name)),
            results.over_seeds(arm.name, last),
            difference(results, arm.name, base),
            *(_controlled(results, arm.name, name) for name in controls),
            _tokens(results.of(arm.name)),
        ]
        lines.append(line(cells))
    return table(columns, lines)


def _untrained(runs: Sequence[Run]) -> Mean | str:
    """Return the first success of the runs that validated before their first step."""
    validated = [first(run) for run in runs if "0" in run["success"]]
    return mean(validated) if validated else ""


def _controlled(results: Results, arm: str, name: str) -> Mean | str:
    runs = [run for run in results.of(arm) if run.get("controls", {}).get(name)]
    return mean([control(name)(run) for run in runs]) if runs else ""


def _tokens(runs: Sequence[Run]) -> str:
    counted = [tokens(run) for run in runs if "session/generated_tokens" in run.get("series", {})]
    return f"{fmean(counted):,.0f}" if counted else ""


def signals(results: Results, arms: Sequence[Arm]) -> str:
    """Make a table of the share of each agent's signal that would remain with one baseline for the whole team."""
    columns = ["arm", "agent", "signal share", "inflation", "deviation of its score, first step"]
    lines = []
    for arm in arms:
        runs = results.of(arm.name)
        names = [key.split("/")[1] for key in (runs[0]["series"] if runs else ()) if key.endswith("group/signal_share")]
        for agent in names:
            of = f"agent/{agent}/group"
            shares = [results.over_seeds(arm.name, _over_steps(f"{of}/{name}")) for name in SIGNALS]
            deviation = results.over_seeds(arm.name, lambda run, of=of: run["series"][f"{of}/sigma"][0])
            lines.append(line([f"`{arm.name}`", agent, *shares, deviation]))
    return table(columns, lines)


def _over_steps(key: str) -> Callable[[Run], float]:
    return lambda run: fmean(value for value in run["series"][key] if value is not None)


def curves(results: Results, arms: Sequence[Arm], figure: Path, *, dashed: str = "", label: str = "") -> str:
    """Draw success by step, with intervals over seeds, and return the Markdown that shows the figure in the page."""
    drawn = [arm for arm in arms if results.of(arm.name) and len(results.of(arm.name)[0]["success"]) > 1]
    if not drawn:
        return ""
    pyplot = plotting()
    canvas, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    for arm in drawn:
        runs = results.of(arm.name)
        steps = list(runs[0]["success"])
        means = [mean([run["success"][step] for run in runs]) for step in steps]
        axes.errorbar(
            [int(step) for step in steps],
            [found.value for found in means],
            [found.half or 0.0 for found in means],
            linestyle="--" if arm.workflow == dashed else "-",
            marker="o",
            capsize=3,
            label=f"{arm.name} ({len(runs)} seeds)",
        )
    label = label or "held-out tasks solved"
    axes.set(xlabel="step", ylabel=f"{label} (mean, 95 % interval over seeds)", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)
    pyplot.close(canvas)
    return f"\n\n![success by step]({FIGURES}/{figure.name})"


def plotting() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
