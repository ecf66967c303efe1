"""Helpers of puzzles on a grid: moves, names of cells, and the share of walls."""

import string
from collections import deque
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from verl_mas.config.values import Below, Range

S = TypeVar("S")
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
FREE, WALL = ".", "#"
NAMES = string.ascii_letters  # names of the rows and columns of a grid
Walls = Annotated[float, Range(0), Below(0.6)]  # the share of cells that are walls
_ZERO, _FARTHEST = ord("m"), 12  # the letter of offset 0, and the largest offset that is encoded


def neighbours(size: int, walls: frozenset[int]) -> tuple[dict[str, int], ...]:
    """Return the legal moves of each cell, with the cells that they lead to."""
    table: list[dict[str, int]] = []
    for cell in range(size * size):
        row, column = divmod(cell, size)
        moves = {}
        for move, (down, right) in MOVES.items():
            to = (row + down) * size + column + right
            if 0 <= row + down < size and 0 <= column + right < size and to not in walls and cell not in walls:
                moves[move] = to
        table.append(moves)
    return tuple(table)


def steps_from(starts: Iterable[S], reached: Callable[[S], Iterable[S]]) -> dict[S, int]:
    """Count the steps from the nearest start to each state. `reached` returns the states one step from a state."""
    steps = dict.fromkeys(starts, 0)
    waiting = deque(steps)
    while waiting:
        state = waiting.popleft()
        for other in reached(state):
            if other not in steps:
                steps[other] = steps[state] + 1
                waiting.append(other)
    return steps


def place(cell: int, size: int, rows: str = NAMES, columns: str = NAMES) -> str:
    """Name a cell by two letters, its row and column, for tiny models."""
    row, column = divmod(cell, size)
    return rows[row] + columns[column]


def offset(start: int, end: int, size: int) -> str:
    """Encode the offset from `start` to `end`, in rows down and columns right, as two letters, for tiny models."""
    apart = (to - at for at, to in zip(divmod(start, size), divmod(end, size), strict=True))
    return "".join(chr(_ZERO + max(-_FARTHEST, min(_FARTHEST, cells))) for cells in apart)
