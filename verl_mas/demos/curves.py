"""Curves of a run, as a figure and as a line of text."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from verl_mas.demos.metrics import Step, series
from verl_mas.errors import ConfigError

BARS = "▁▂▃▄▅▆▇█"


def check_plots() -> None:
    """Refuse a missing matplotlib before a run that ends with a figure."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib is not installed", rule="curves are drawn with matplotlib", fix='pip install "verl-mas[plots]"'
        )


def plot(
    steps: list[Step],
    panels: Mapping[str, Mapping[str, str]],
    file: Path,
    title: str,
    levels: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw panels below each other. `panels` maps a y-label to its curves, which map a legend to a metric's key;
    `levels` maps a y-label to constants by legend."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    height = 1.5 + 2 * len(panels)
    figure, rows = pyplot.subplots(len(panels), sharex=True, squeeze=False, figsize=(7, height), layout="constrained")
    figure.suptitle(title)
    for axes, (measured, curves) in zip(rows[:, 0], panels.items(), strict=True):
        for legend, key in curves.items():
            numbers, values = series(steps, key)
            if values:
                axes.plot(numbers, values, label=legend, marker="o" if len(values) < 12 else None)
        for legend, value in (levels or {}).get(measured, {}).items():
            axes.axhline(value, label=legend, linestyle="--", color="gray")
        axes.set_ylabel(measured)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    rows[-1, 0].set_xlabel("step")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def sparkline(values: list[float], width: int = 40) -> str:
    """The values as a line of bars, scaled from their minimum to their maximum."""
    if not values:
        return ""
    step = -(-len(values) // width)
    means = [sum(part) / len(part) for part in (values[i : i + step] for i in range(0, len(values), step))]
    low, span = min(means), max(means) - min(means) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in means)
