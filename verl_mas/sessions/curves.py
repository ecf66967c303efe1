"""Curves of a run: as a line of text and as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TypeAlias

from verl_mas.run_folder.disk import write_whole

BARS = "▁▂▃▄▅▆▇█"
COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, GAP = 760, 130, 64, 190, 34, 34
INNER = WIDTH - LEFT - RIGHT
MARKS = 12  # points that are few are drawn as dots, too
Curve: TypeAlias = tuple[Sequence[int], Sequence[float]]  # The numbers of the steps, and the values there


@dataclass(frozen=True)
class Panel:
    """What is measured, with a curve per legend."""

    title: str
    curves: Mapping[str, Curve]
    levels: Mapping[str, float] = field(default_factory=dict)  # Constants beside them

    def finite(self) -> dict[str, list[tuple[int, float]]]:
        points = {}
        for legend, curve in self.curves.items():
            points[legend] = [(x, y) for x, y in zip(*curve, strict=True) if math.isfinite(y)]
        return {legend: found for legend, found in points.items() if found}


def write_curves(panels: Sequence[Panel], file: Path, title: str) -> Path:
    write_whole(file, draw(panels, title))
    return file


def draw(panels: Sequence[Panel], title: str) -> str:
    """Panels below each other, over the same steps, as one SVG."""
    filled = [panel for panel in panels if panel.finite()]
    steps = [x for panel in filled for points in panel.finite().values() for x, _ in points]
    first, last = (min(steps), max(steps)) if steps else (0, 1)
    bottom = TOP + len(filled) * (HEIGHT + GAP)
    height = bottom + 20
    body = [part for place, panel in enumerate(filled) for part in _panel(panel, place, first, last)]
    if filled:
        body.append(f'<text x="{LEFT + INNER / 2}" y="{bottom + 4}" text-anchor="middle">step</text>')
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
    ]
    return "\n".join([*head, *body, "</svg>\n"])


def _panel(panel: Panel, place: int, first: int, last: int) -> Iterator[str]:
    top = TOP + place * (HEIGHT + GAP) + 14
    points = panel.finite()
    values = [y for found in points.values() for _, y in found] + list(panel.levels.values())
    ticks = nice_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]

    def at_x(step: float) -> float:
        return LEFT + (step - first) / max(last - first, 1) * INNER

    def at_y(value: float) -> float:
        return top + HEIGHT - (value - low) / (high - low) * HEIGHT

    yield f'<text x="{LEFT}" y="{top - 5}" fill="#333333">{escape(panel.title)}</text>'
    for tick in ticks:
        y = at_y(tick)
        yield f'<line x1="{LEFT}" x2="{LEFT + INNER}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e6e6e6"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{tick:g}</text>'
    for step in dict.fromkeys((first, last)):
        yield f'<text x="{at_x(step):.1f}" y="{top + HEIGHT + 14}" text-anchor="middle" font-size="11">{step}</text>'
    legends: list[tuple[str, str, str]] = []
    for number, (legend, found) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in found)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        if len(found) < MARKS:
            yield from (f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in found)
        legends.append((legend, colour, ""))
    for legend, value in panel.levels.items():
        y = at_y(value)
        across = f'x1="{LEFT}" x2="{LEFT + INNER}" y1="{y:.1f}" y2="{y:.1f}"'
        yield f'<line {across} stroke="#888888" stroke-dasharray="5 4"/>'
        legends.append((legend, "#888888", "5 4"))
    x = LEFT + INNER + 12
    for number, (legend, colour, dashes) in enumerate(legends):
        y = top + 10 + number * 16
        yield f'<line x1="{x}" x2="{x + 16}" y1="{y}" y2="{y}" stroke="{colour}" stroke-dasharray="{dashes}"/>'
        yield f'<text x="{x + 21}" y="{y + 4}" font-size="11">{escape(legend)}</text>'


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers around the values: the axis begins near the lowest, so that a change is seen."""
    widest = max(abs(low), abs(high))
    # Numbers that are the same but for their rounding are one.
    span = high - low if high - low > max(1e-9 * widest, 1e-300) else max(widest, 1.0) * 0.1
    size = 10 ** math.floor(math.log10(span / 2))
    apart = next(size * factor for factor in (1, 2, 5, 10) if span / (size * factor) <= 4)
    begin = math.floor(low / apart + 1e-9)
    end = max(math.ceil(high / apart - 1e-9), begin + 1)
    return [float(f"{number * apart:.12g}") for number in range(begin, end + 1)]


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The values as a line of bars, scaled from their minimum to their maximum."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    step = -(-len(finite) // width)
    means = [sum(part) / len(part) for part in (finite[i : i + step] for i in range(0, len(finite), step))]
    low, span = min(means), max(means) - min(means) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in means)
