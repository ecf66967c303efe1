"""A session on a puzzle drawn as text, from its trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_mas.puzzles.base import Puzzle
from verl_mas.workflow import ActionList, Malformed

GAP = "   "


def draw(puzzle: Puzzle, session: Mapping[str, Any], codec: ActionList, acting: str) -> str:
    """The board turn by turn, side by side; above each what the agents said. `acting` is the agent that moves it."""
    panels = [["start", "", *puzzle.render().splitlines()]]
    said: list[str] = []
    for act in session["acts"]:
        if not act["committed"]:
            continue
        said.append(f"{act['agent'][0]}: {act['text'] or '(nothing)'}")
        if act["agent"] != acting:
            continue
        actions = codec.parse(act["text"])
        for action in () if isinstance(actions, Malformed) else actions:
            if not puzzle.solved:
                puzzle.step(action)
        panels.append([*said, *[""] * (2 - len(said)), *puzzle.render().splitlines()])
        said = []
    ending = "solved" if puzzle.solved else "not solved"
    return f"{_side_by_side(panels)}\n{ending} after {len(panels) - 1} turns"


def _side_by_side(panels: list[list[str]]) -> str:
    height = max(map(len, panels))
    widths = [max(map(len, panel)) for panel in panels]
    lines = []
    for place in range(height):
        cells = [panel[place] if place < len(panel) else "" for panel in panels]
        lines.append(GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return "\n".join(lines)
