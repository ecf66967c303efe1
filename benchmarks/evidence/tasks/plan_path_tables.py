"""The tables of Plan-Path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evidence.arms import Arm
from benchmarks.evidence.intervals import factor, second_moment, spikes
from benchmarks.evidence.tables import (
    FIGURES,
    NOT_RUN,
    Results,
    curves,
    difference,
    first,
    last,
    line,
    plotting,
    replies,
    table,
)
from benchmarks.evidence.tasks.plan_path import (
    ALONE,
    DENSE_ARMS,
    ESTIMATORS,
    EXECUTOR,
    FACTORS,
    PLANNER,
    SIZE_ARMS,
    SPARSE_ARMS,
    TOGETHER,
    uneven,
)

# Number of first steps in which the policies of both estimators are still similar, because they start as one model.
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


def sections(results: Results, figures: Path) -> dict[str, str]:
    return {
        "dense": compared(results, DENSE_ARMS, figures / "dense.png"),
        "sparse": compared(results, SPARSE_ARMS, figures / "sparse.png", ("dense", DENSE_ARMS)),
        "sizes": compared(results, (DENSE_ARMS[0], *SIZE_ARMS), figures / "sizes.png"),
        "uneven": unevenness(results, figures / "uneven.png"),
        "roles": roles(results),
    }


def compared(
    results: Results,
    arms: Sequence[Arm],
    figure: Path,
    other: tuple[str, Sequence[Arm]] = ("", ()),
) -> str:
    """Make the table of E1: success before and after training, the number of replies, and the differences on the same
    seeds from the first arm and from the same arm with the `other` reward."""
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
            difference(results, arm.name, base),
            *([difference(results, arm.name, others[place].name)] if others else []),
            f"{fmean(map(replies, results.of(arm.name))):,.0f}",
        ]
        lines.append(line(cells))
    if others:
        columns.insert(-1, f"less the same, {way}, paired")
    drawn = curves(results, arms, figure, dashed=ALONE, label="held-out boards solved")
    return table(columns, lines) + drawn


def unevenness(results: Results, figure: Path) -> str:
    """Make the table of E2: the gradients of each role under both estimators, and the factor between them that the
    lemma predicts from the scores."""
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
                lines.append(line(cells))
    if not lines:
        return NOT_RUN
    _draw_gradients(results, figure)
    return "\n".join([header, *lines, "", f"![gradient norms]({FIGURES}/{figure.name})"])


def norms(run: dict[str, Any], role: str) -> list[float]:
    return run["series"][f"policy/{role}/actor/grad_norm"]


def predicted(run: dict[str, Any], role: str) -> float:
    return fmean(value for value in run["series"][f"agent/{role}/group/inflation"][:ALIKE] if value is not None)


def _measured(results: Results, times: int, role: str) -> str:
    """Return the mean squared norm under the team's baseline, divided by that under the agent's own baseline."""
    team, own = (results.runs.get(uneven(estimator, times).name, {}) for estimator in ESTIMATORS)
    ratios = [
        second_moment(norms(team[seed], role)[:ALIKE]) / second_moment(norms(own[seed], role)[:ALIKE])
        for seed in sorted(team.keys() & own.keys())
    ]
    return factor(ratios) if ratios else ""


def roles(results: Results) -> str:
    """Make the table of E3: the success of a policy per role in several combinations."""
    lines = []
    for label, arm in ROLES.items():
        trained = results.over_seeds(arm, last)
        if trained is not None:
            less = difference(results, arm, KEPT) if arm != TOGETHER else ""
            cells = [label, trained.seeds, trained, less, _by_seed(results.of(arm))]
            lines.append(line(cells))
    if not lines:
        return NOT_RUN
    start = results.over_seeds(TOGETHER, first)
    if start is not None:
        lines.insert(0, line(["untrained", start.seeds, start, "", ""]))
    return "\n".join(["| policies | seeds | success | less roles kept, paired | by seed |", "|---" * 5 + "|", *lines])


def _by_seed(runs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{last(run):.3f}" for run in runs)


def _draw_gradients(results: Results, figure: Path) -> None:
    pyplot = plotting()
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
