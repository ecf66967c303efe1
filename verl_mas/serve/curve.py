"""Curves as an SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 320, 56, 28, 36
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LEGEND = 18


def draw(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, below: str) -> str:
    """Each curve is (x, y). The y axis has 0, and 1 where no value is larger."""
    xs = [x for across, _ in curves.values() for x in across]
    ys = [y for _, up in curves.values() for y in up]
    ends = (min(xs), max(max(xs), min(xs) + 1)), (min(0.0, *ys), max(1.0, *ys))
    height = HEIGHT + LEGEND * len(curves)
    body = [*_axes(ends, title, below), *_lines(curves, ends)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="white"/>{"".join(body)}</svg>\n'
    )


def _axes(ends: tuple[tuple[float, float], tuple[float, float]], title: str, below: str) -> Iterator[str]:
    (left, right), (low, high) = ends
    base = HEIGHT - BOTTOM
    yield f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>'
    for part in range(5):
        value = low + (high - low) * part / 4
        y = _y(value, ends[1])
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - 12}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    for value, anchor in ((left, "start"), (right, "end")):
        yield f'<text x="{_x(value, ends[0]):.1f}" y="{base + 18}" text-anchor="{anchor}">{value:g}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{base + 18}" text-anchor="middle">{escape(below)}</text>'


def _lines(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ends: tuple[tuple[float, float], tuple[float, float]],
) -> Iterator[str]:
    for number, (name, (across, up)) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(_x(x, ends[0]), _y(y, ends[1])) for x, y in zip(across, up, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
        y = HEIGHT + LEGEND * number
        yield f'<rect x="{LEFT}" y="{y - 8}" width="12" height="4" fill="{colour}"/>'
        yield f'<text x="{LEFT + 18}" y="{y}">{escape(name)}</text>'


def _x(value: float, ends: tuple[float, float]) -> float:
    return LEFT + (value - ends[0]) / (ends[1] - ends[0]) * (WIDTH - 12 - LEFT)


def _y(value: float, ends: tuple[float, float]) -> float:
    return HEIGHT - BOTTOM - (value - ends[0]) / (ends[1] - ends[0]) * (HEIGHT - BOTTOM - TOP)
