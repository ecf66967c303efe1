"""What puzzles on a grid of cells share: moves, names of cells, checks of a size."""

from __future__ import annotations

import string

from verl_mas.errors import ConfigError

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
FREE, WALL = ".", "#"
# A row or a column of the grid.
NAMES = string.ascii_letters
# The letter of an offset of 0; beyond 12 they are shown as 12.
_ZERO, _FARTHEST = ord("m"), 12


def neighbours(size: int, walls: frozenset[int]) -> tuple[dict[str, int], ...]:
    """For every cell the legal moves and where they lead."""
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


def place(cell: int, size: int) -> str:
    """The row and the column of a cell, for tiny models."""
    row, column = divmod(cell, size)
    return NAMES[row] + NAMES[column]


def offset(start: int, end: int, size: int) -> str:
    """How far down and how far right `end` is, for tiny models."""
    row, column = divmod(start, size)
    to_row, to_column = divmod(end, size)
    return _letter(to_row - row) + _letter(to_column - column)


def _letter(cells: int) -> str:
    return chr(_ZERO + max(-_FARTHEST, min(_FARTHEST, cells)))


def check_share(name: str, share: float) -> None:
    if not 0 <= share < 0.6:
        raise ConfigError(
            f"{name}={share}", rule="the share of wall cells is between 0 and 0.6", fix="0.22 is the usual share"
        )


def check_distance(min_distance: int) -> None:
    if min_distance < 1:
        raise ConfigError(f"min_distance={min_distance}", rule="a board is unsolved at first", fix="1 or more")
