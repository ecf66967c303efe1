"""A timeline as one SVG file: a row per engine and per trainer, seconds from left to right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from verl_mas.errors import DataError
from verl_mas.trainer.timeline import (
    ABORT,
    ENGINE,
    LOG_PROBS,
    RESUME,
    SAMPLE,
    SAVE,
    SLEEP,
    START,
    STEP,
    UPDATE,
    VALIDATE,
    WAKE,
    Event,
)

COLOURS = {
    ENGINE: "#4c78a8",
    SAMPLE: "#d9d9d9",
    LOG_PROBS: "#f2cf5b",
    UPDATE: "#e45756",
    ABORT: "#000000",
    SLEEP: "#9d755d",
    WAKE: "#54a24b",
    RESUME: "#88d27a",
    SAVE: "#b279a2",
    VALIDATE: "#ff9da6",
}
NAMES = {
    ENGINE: "engine has requests",
    SAMPLE: "waits for tasks",
    LOG_PROBS: "log-probs",
    WAKE: "weights to engines, wake",
}
WIDTH, LEFT, RIGHT, ROW, BAR, TOP = 1200, 170, 20, 26, 18, 34
TRAINER = "trainer"


def draw(events: Sequence[Event], title: str = "", steps: tuple[int, int] | None = None) -> str:
    """The SVG of these steps, first and last; of all without. Raises DataError where there are none."""
    chosen = [event for event in events if steps is None or steps[0] <= event.step <= steps[1]]
    spans = [event for event in chosen if event.event in COLOURS]
    if not spans:
        known = sorted({event.step for event in events if event.event != START})
        asked = "the timeline" if steps is None else f"--steps {steps[0]}-{steps[1]}"
        raise DataError(
            f"{asked} has no events",
            rule=f"the run recorded steps {known[0]} to {known[-1]}"
            if known
            else "the run ended before its first step",
            fix="choose steps that were recorded" if known else "draw a run that has trained a step",
        )
    first, last = min(event.begin for event in spans), max(event.end for event in spans)
    scale = (WIDTH - LEFT - RIGHT) / max(last - first, 1e-6)
    rows = list(dict.fromkeys(sorted((row_of(event) for event in spans), key=_order)))
    height = TOP + ROW * len(rows) + 70
    body = [*_axis(rows, first, last, scale), *_steps(chosen, rows, first, scale)]
    body += [_bar(event, rows.index(row_of(event)), first, scale) for event in spans]
    body += _legend([name for name in COLOURS if any(event.event == name for event in spans)], height - 22)
    return svg((WIDTH, height), LEFT, title, body)


def svg(size: tuple[int, int], left: int, title: str, body: Iterable[str]) -> str:
    """A picture on white, with its title."""
    width, height = size
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="{left}" y="16" font-weight="bold">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def row_of(event: Event) -> str:
    if event.event == ENGINE:
        return f"engine {event.policy}"
    return f"{TRAINER} {event.policy}".strip()


def _order(row: str) -> tuple[bool, bool, str]:
    """The whole team's row first, then the engines, then the training processes."""
    return row != TRAINER, not row.startswith("engine "), row


def _bar(event: Event, row: int, first: float, scale: float) -> str:
    x, width = LEFT + (event.begin - first) * scale, max(event.seconds * scale, 0.5)
    policy = f" of {event.policy}" if event.policy else ""
    note = f"step {event.step}: {NAMES.get(event.event, event.event)}{policy}, {event.seconds:.3f} s"
    return (
        f'<rect x="{x:.2f}" y="{TOP + row * ROW + 4}" width="{width:.2f}" height="{BAR}" '
        f'fill="{COLOURS[event.event]}"><title>{escape(note)}</title></rect>'
    )


def _axis(rows: Sequence[str], first: float, last: float, scale: float) -> Iterator[str]:
    bottom = TOP + ROW * len(rows)
    for number, row in enumerate(rows):
        yield f'<text x="{LEFT - 8}" y="{TOP + number * ROW + 17}" text-anchor="end">{escape(row)}</text>'
    apart = _round(last - first)
    for mark in range(int((last - first) / apart) + 1):
        x = LEFT + mark * apart * scale
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP}" y2="{bottom}" stroke="#eeeeee"/>'
        yield f'<text x="{x:.2f}" y="{bottom + 16}" text-anchor="middle">{mark * apart:g} s</text>'


def _round(seconds: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are at most ten marks."""
    apart = 1e-3
    while True:
        for factor in (1, 2, 5):
            if seconds <= 10 * factor * apart:
                return factor * apart
        apart *= 10


def _steps(events: Sequence[Event], rows: Sequence[str], first: float, scale: float) -> Iterator[str]:
    """A line where each step begins."""
    for event in events:
        x = LEFT + (event.begin - first) * scale
        if event.event == STEP and x >= LEFT:
            yield (
                f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP - 8}" y2="{TOP + ROW * len(rows)}" stroke="#888888" '
                'stroke-dasharray="3 3"/>'
            )
            yield f'<text x="{x + 3:.2f}" y="{TOP - 2}" font-size="10" fill="#555555">step {event.step}</text>'


def _legend(names: Sequence[str], y: float) -> Iterator[str]:
    x = float(LEFT)
    for name in names:
        text = NAMES.get(name, name)
        yield f'<rect x="{x:.0f}" y="{y - 10}" width="11" height="11" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 15:.0f}" y="{y}">{escape(text)}</text>'
        x += 30 + 6.5 * len(text)
