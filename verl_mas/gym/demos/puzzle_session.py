"""A session on a puzzle, drawn as text from its trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_mas.gym.puzzles.base import Puzzle
from verl_mas.util.text import printable
from verl_mas.workflow import ActionList, Malformed

GAP = "   "


def draw(puzzle: Puzzle, session: Mapping[str, Any], codec: ActionList, acting: str) -> str:
    """The boards of all turns, side by side, below the replies. The actions of the agent `acting` are applied."""
    panels = [["start", "", *puzzle.render().splitlines()]]
    replies: list[str] = []
    for act in session["acts"]:
        if not act["committed"]:
            continue
        replies.append(f"{act['agent'][0]}: {printable(act['text'], keep='') or '(empty)'}")
        if act["agent"] != acting:
            continue
        actions = codec.parse(act["text"])
        for action in () if isinstance(actions, Malformed) else actions:
            if not puzzle.solved:
                puzzle.step(action)
        panels.append([*replies, *[""] * (2 - len(replies)), *puzzle.render().splitlines()])
        replies = []
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
