"""Generates the tables and figures of EVIDENCE.md from the results. The text around them is written by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evidence.intervals import Mean, factor, mean, second_moment, spikes
from benchmarks.evidence.matrix import (
    ALONE,
    DENSE_ARMS,
    ESTIMATORS,
    EXECUTOR,
    FACTORS,
    PLANNER,
    SIZE_ARMS,
    SPARSE_ARMS,
    TOGETHER,
    Training,
    pieces,
    uneven,
)

FIGURES = "evidence/figures"
# Steps in which the policies of both estimators, which start as one, are still similar.
ALIKE = 5
KEPT = "roles_kept"
ROLES = {
    "both roles trained together": TOGETHER,
    "the same, loaded from its exported weights": KEPT,
    "roles swapped": "roles_swapped",
    "planner trained, executor frozen": "planner_alone",
    "executor trained, planner frozen": "executor_alone",
    "each trained alone, then combined": "roles_combined",
}


@dataclass(frozen=True)
class Results:
    """The runs of every arm, by seed."""

    runs: dict[str, dict[int, dict[str, Any]]]

    @classmethod
    def read(cls, folder: Path) -> Results:
        runs: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        for file in sorted(folder.glob("*.json")):
            run = json.loads(file.read_text())
            runs[run["arm"]][run["seed"]] = run
        return cls(dict(runs))

    def of(self, arm: str) -> list[dict[str, Any]]:
        return [run for _, run in sorted(self.runs.get(arm, {}).items())]

    def paired(self, arm: str, other: str) -> list[float]:
        """Last success of `arm` minus that of `other`, per seed."""
        mine, theirs = self.runs.get(arm, {}), self.runs.get(other, {})
        return [last(mine[seed]) - last(theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]

    def over_seeds(self, arm: str, number: Callable[[dict[str, Any]], float]) -> Mean | None:
        runs = self.of(arm)
        return mean([number(run) for run in runs]) if runs else None


def first(run: dict[str, Any]) -> float:
    return next(iter(run["success"].values()))


def last(run: dict[str, Any]) -> float:
    return list(run["success"].values())[-1]


def write(page: Path, results: Results) -> None:
    """Replace the text between `<!-- name -->` and `<!-- /name -->`, and draw the figures."""
    figures = page.parent / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    text = page.read_text()
    sections = {
        "dense": learning(results, DENSE_ARMS, figures / "dense.png"),
        "sparse": learning(results, SPARSE_ARMS, figures / "sparse.png", ("dense", DENSE_ARMS)),
        "sizes": learning(results, (DENSE_ARMS[0], *SIZE_ARMS), figures / "sizes.png"),
        "uneven": unevenness(results, figures / "uneven.png"),
        "roles": roles(results),
        "left": left(results),
    }
    for name, content in sections.items():
        text = between(text, name, content)
    page.write_text(text)


def between(text: str, name: str, content: str) -> str:
    before, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise ValueError(f"the page has no <!-- {name} --> ... <!-- /{name} -->")
    return f"{before}{start}{content}\n{end}{after}"


def learning(
    results: Results,
    arms: Sequence[Training],
    figure: Path,
    other: tuple[str, Sequence[Training]] = ("", ()),
) -> str:
    """E1: success before and after, replies sampled, and the difference on the same seeds: from the first arm, and from
    the same arm with the `other` reward."""
    base = arms[0].name
    way, others = other
    columns = ["arm", "seeds", "untrained", "trained", f"less `{base}`, paired", "replies per run"]
    lines = []
    for place, arm in enumerate(arms):
        trained = results.over_seeds(arm.name, last)
        if trained is None:
            continue
        cells = [
            f"`{arm.name}`",
            trained.seeds,
            results.over_seeds(arm.name, first),
            trained,
            _difference(results, arm.name, base),
            *([_difference(results, arm.name, others[place].name)] if others else []),
            f"{fmean(map(replies, results.of(arm.name))):,.0f}",
        ]
        lines.append(_line(cells))
    if others:
        columns.insert(-1, f"less the same, {way}, paired")
    if not lines:
        return "Not yet run."
    _draw_learning(results, arms, figure)
    head = [_line(columns), "|---" * len(columns) + "|"]
    return "\n".join([*head, *lines, "", f"![success by step]({FIGURES}/{figure.name})"])


def _difference(results: Results, arm: str, other: str) -> Mean | str:
    found = results.paired(arm, other) if arm != other else []
    return mean(found) if found else ""


def replies(run: dict[str, Any]) -> float:
    return sum(sum(values) for key, values in run["series"].items() if key.endswith("rows/real"))


def unevenness(results: Results, figure: Path) -> str:
    """E2: gradients of each role under both estimators, and the factor that the lemma gives for the scores."""
    header = (
        "| planner's reward | estimator | seeds | role | lemma's factor | measured factor | spikes | success |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    lines = []
    for times in FACTORS:
        for estimator in ESTIMATORS:
            arm = uneven(estimator, times).name
            for role in (PLANNER, EXECUTOR) if results.of(arm) else ():
                cells = [
                    f"x {times}",
                    f"`{estimator}`",
                    len(results.of(arm)),
                    role,
                    factor([predicted(run, role) for run in results.of(arm)]),
                    _measured(results, times, role) if estimator == "team_grpo" else "",
                    results.over_seeds(arm, lambda run, role=role: spikes(norms(run, role))),
                    results.over_seeds(arm, last),
                ]
                lines.append(_line(cells))
    if not lines:
        return "Not yet run."
    _draw_gradients(results, figure)
    return "\n".join([header, *lines, "", f"![gradient norms]({FIGURES}/{figure.name})"])


def norms(run: dict[str, Any], role: str) -> list[float]:
    return run["series"][f"mas/{role}/actor/grad_norm"]


def predicted(run: dict[str, Any], role: str) -> float:
    return fmean(value for value in run["series"][f"mas/{role}/group/inflation"][:ALIKE] if value is not None)


def _measured(results: Results, times: int, role: str) -> str:
    """The squared norm under the team's baseline over that under the agent's own, per seed."""
    team, own = (results.runs.get(uneven(estimator, times).name, {}) for estimator in ESTIMATORS)
    ratios = [
        second_moment(norms(team[seed], role)[:ALIKE]) / second_moment(norms(own[seed], role)[:ALIKE])
        for seed in sorted(team.keys() & own.keys())
    ]
    return factor(ratios) if ratios else ""


def roles(results: Results) -> str:
    """E3: one policy per role, in every combination."""
    lines = []
    for label, arm in ROLES.items():
        trained = results.over_seeds(arm, last)
        if trained is not None:
            difference = _difference(results, arm, KEPT) if arm != TOGETHER else ""
            cells = [label, trained.seeds, trained, difference, _by_seed(results.of(arm))]
            lines.append(_line(cells))
    if not lines:
        return "Not yet run."
    start = results.over_seeds(TOGETHER, first)
    if start is not None:
        lines.insert(0, _line(["untrained", start.seeds, start, "", ""]))
    return "\n".join(["| policies | seeds | success | less roles kept, paired | by seed |", "|---" * 5 + "|", *lines])


def left(results: Results) -> str:
    missing: dict[str, list[str]] = defaultdict(list)
    for piece in pieces():
        if piece.seed not in results.runs.get(piece.arm.name, {}):
            missing[piece.arm.name].append(str(piece.seed))
    if not missing:
        return "Everything has run."
    return "\n".join(f"- `{arm}`: seeds {', '.join(seeds)}" for arm, seeds in missing.items())


def _by_seed(runs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{last(run):.3f}" for run in runs)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _draw_learning(results: Results, arms: Sequence[Training], figure: Path) -> None:
    pyplot = _pyplot()
    canvas, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    for arm in arms:
        runs = results.of(arm.name)
        if not runs:
            continue
        steps = list(runs[0]["success"])
        means = [mean([run["success"][step] for run in runs]) for step in steps]
        dashed = "--" if arm.workflow == ALONE else "-"
        axes.errorbar(
            [int(step) for step in steps],
            [found.value for found in means],
            [found.half or 0.0 for found in means],
            linestyle=dashed,
            marker="o",
            capsize=3,
            label=f"{arm.name} ({len(runs)} seeds)",
        )
    axes.set(xlabel="step", ylabel="held-out boards solved (mean, 95 % interval over seeds)", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    canvas.savefig(figure, dpi=120)
    pyplot.close(canvas)


def _draw_gradients(results: Results, figure: Path) -> None:
    pyplot = _pyplot()
    canvas, grid = pyplot.subplots(
        2, len(FACTORS), figsize=(4 * len(FACTORS), 6), layout="constrained", sharex=True, sharey=True
    )
    for row, role in zip(grid, (PLANNER, EXECUTOR), strict=True):
        for axes, times in zip(row, FACTORS, strict=True):
            for estimator, colour in zip(ESTIMATORS, ("tab:red", "tab:blue"), strict=True):
                for number, run in enumerate(results.of(uneven(estimator, times).name)):
                    values = norms(run, role)
                    label = estimator if number == 0 else None
                    axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.7, label=label)
            axes.set(title=f"{role}, planner's reward x {times}", yscale="log")
            axes.grid(alpha=0.3)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
    canvas.supxlabel("step")
    canvas.supylabel("gradient norm before clipping, one line per seed")
    canvas.savefig(figure, dpi=120)
    pyplot.close(canvas)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
