"""Curves of a run: as a line of text and as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

BARS = "▁▂▃▄▅▆▇█"
COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 130, 64, 190, 34, 34
INNER = WIDTH - LEFT - RIGHT
MARKS = 12  # points that are few are drawn as dots, too
Curve: TypeAlias = tuple[Sequence[int], Sequence[float]]  # The numbers of the steps, and the values there


def draw(curves: Mapping[str, Curve], title: str) -> str:
    """Curves over the same steps as SVG, by their legend."""
    height = TOP + HEIGHT + BOTTOM
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
    ]
    found = {}
    for legend, curve in curves.items():
        found[legend] = [(x, y) for x, y in zip(*curve, strict=True) if math.isfinite(y)]
    points = {legend: line for legend, line in found.items() if line}
    return "\n".join([*head, *(_drawn(points) if points else ()), "</svg>\n"])


def _drawn(points: Mapping[str, Sequence[tuple[int, float]]]) -> Iterator[str]:
    steps = [x for line in points.values() for x, _ in line]
    values = [y for line in points.values() for _, y in line]
    first, last, ticks = min(steps), max(steps), nice_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]

    def at_x(step: float) -> float:
        return LEFT + (step - first) / max(last - first, 1) * INNER

    def at_y(value: float) -> float:
        return TOP + HEIGHT - (value - low) / (high - low) * HEIGHT

    for tick in ticks:
        y = at_y(tick)
        yield f'<line x1="{LEFT}" x2="{LEFT + INNER}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e6e6e6"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{tick:g}</text>'
    for x, text in {at_x(first): first, at_x(last): last, LEFT + INNER / 2: "step"}.items():
        yield f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle" font-size="11">{text}</text>'
    for number, (legend, line) in enumerate(points.items()):
        colour, y = COLOURS[number % len(COLOURS)], TOP + 10 + number * 16
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        if len(line) < MARKS:
            yield from (f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in line)
        yield f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 28}" y1="{y}" y2="{y}" stroke="{colour}"/>'
        yield f'<text x="{WIDTH - RIGHT + 33}" y="{y + 4}" font-size="11">{escape(legend)}</text>'


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
