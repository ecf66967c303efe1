"""docs/use/metrics.md: every metric with its meaning, from the table of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pages.markdown import table
from verl_mas.run_folder.metrics.table import METRICS, SECTIONS, TO_WATCH, Metric

HEAD = """\
# Metrics

Generated from `verl_mas/run_folder/metrics/table.yaml` by `python scripts/generate_pages.py`.

verl's `Tracking` sends these to every logger, once per step. A prefix `val-` marks metrics of the validation. verl's
own metrics keep verl's names, and each number is logged once: with one trained policy an actor's metric is
`actor/grad_norm`, with several it is `policy/solver/actor/grad_norm`.

`scripts/dashboard.py` arranges them for TensorBoard and Weights & Biases: [dashboards](#dashboards).

## The ten to watch

Look at these first. What to do when one of them is not as it should be: [a team that does not learn](debugging.md).
"""
DASHBOARDS = """\
## Dashboards

TensorBoard and Weights & Biases make one section of everything before the first slash, so all agents share one;
MLflow, trackio and SwanLab [have sections per agent](run-folder.md#sections-and-resumed-runs).
`scripts/dashboard.py` of the repository lays out what a run has logged, the ten to watch first, and then a section per
agent, per policy and per kind of metric:

    python scripts/dashboard.py checkpoints/my_run --tensorboard tensorboard_log/my_project/my_run
    python scripts/dashboard.py checkpoints/my_run --wandb my_entity/my_project

The first writes the folder `dashboard` into the folder of event files that TensorBoard displays, for its tab Custom
Scalars. The second creates a workspace in the project and prints its address; it needs `pip install wandb-workspaces`.
"""


def page(root: Path) -> str:
    watch = table(("metric", "meaning", "healthy"), [(*described(metric), metric.watch) for metric in TO_WATCH])
    sections = (f"## {section.title}\n\n{section.about}\n\n{of_section(section.metrics)}\n" for section in SECTIONS)
    return "\n".join([HEAD, f"{watch}\n", *sections, DASHBOARDS])


def of_section(metrics: Sequence[Metric]) -> str:
    """Write a row per metric. Families that repeat others with `val-` are listed below the table."""
    known = {metric.pattern for metric in METRICS}
    as_above = [metric for metric in metrics if metric.pattern.removeprefix("val-") in known - {metric.pattern}]
    rows = [(code(metric.pattern), measured(metric)) for metric in metrics if metric not in as_above]
    families = dict.fromkeys(metric.pattern.partition("/")[0] for metric in as_above)
    listed = " and ".join(f"`{family}/...`" for family in families)
    below = f"\n\nAs those without `val-`: {listed}." if as_above else ""
    return table(("metric", "meaning"), rows) + below


def measured(metric: Metric) -> str:
    """Return the meaning, with the unit if the meaning does not name it."""
    return metric.meaning if not metric.unit or metric.unit in metric.meaning else f"{metric.meaning} ({metric.unit})"


def described(metric: Metric) -> tuple[str, str]:
    return code(metric.pattern), metric.meaning


def code(text: str) -> str:
    name, comma, rest = text.partition(",") if "{" not in text else (text, "", "")
    return f"`{name}`{comma}{rest}"
