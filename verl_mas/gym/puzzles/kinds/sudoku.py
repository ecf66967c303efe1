"""Sudoku 4x4 and 9x9 with one solution. A wrong digit can be replaced, so every state can be solved."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from verl_mas.errors import ConfigError
from verl_mas.gym.puzzles import grid
from verl_mas.gym.puzzles.puzzle import Puzzle, register_puzzle, stream
from verl_mas.util.splits import TRAIN, split_of

EMPTY = "."
_ROWS, _COLUMNS = "abcdefghi", "ABCDEFGHI"  # tokenizers split digits; a cell named by two letters can be one token
place = partial(grid.place, rows=_ROWS, columns=_COLUMNS)
_LETTERS = "o" + _ROWS  # the digits as letters in `compact`; 0 is an empty cell
_SIGNS = (EMPTY + "123456789").encode().ljust(256)
_BLANKS = {4: 9, 9: 45}


def _peers(size: int) -> tuple[tuple[int, ...], ...]:
    """Return for each cell the other cells in its row, column and box."""
    box = math.isqrt(size)
    zones = [(i // size, size + i % size, 2 * size + i // size // box * box + i % size // box) for i in range(size**2)]
    return tuple(tuple(j for j in range(size**2) if j != i and set(zones[i]) & set(zones[j])) for i in range(size**2))


_PEERS = {size: _peers(size) for size in _BLANKS}


def _narrowest(cells: list[int], size: int) -> tuple[int, list[int]] | None:
    """Find the empty cell with the fewest possible digits, and these digits; None if the grid is full."""
    best, choices, fewest = -1, 0, size + 1
    for cell, digit in enumerate(cells):
        if digit:
            continue
        free = (1 << size) - 1
        for peer in _PEERS[size][cell]:
            if cells[peer]:
                free &= ~(1 << (cells[peer] - 1))
        if free.bit_count() < fewest:
            best, choices, fewest = cell, free, free.bit_count()
            if fewest <= 1:
                break
    if best < 0:
        return None
    return best, [digit for digit in range(1, size + 1) if choices >> (digit - 1) & 1]


def solved(cells: list[int], size: int, rng: random.Random | None = None) -> Iterator[list[int]]:
    """Yield the solutions of a grid (0 is an empty cell), with `rng` in random order. Each solution is the list `cells`
    itself, filled in place. After the last solution, `cells` is as it was before the call."""
    narrowest = _narrowest(cells, size)
    if narrowest is None:
        yield cells
        return
    cell, digits = narrowest
    for digit in rng.sample(digits, len(digits)) if rng else digits:
        cells[cell] = digit
        yield from solved(cells, size, rng)
    cells[cell] = 0


def full_grid(rng: random.Random, size: int) -> list[int]:
    return next(solved([0] * size**2, size, rng))


def unique(cells: list[int], size: int) -> bool:
    """Whether the grid has exactly one solution."""
    return sum(1 for _ in islice(solved(cells.copy(), size), 2)) == 1


def dig(rng: random.Random, solution: list[int], size: int, blanks: int) -> list[int]:
    """Empty up to `blanks` cells of `solution`, as long as `solution` remains the only solution of the grid."""
    cells = list(solution)
    for cell in rng.sample(range(len(cells)), len(cells)):
        if blanks == 0:
            break
        cells[cell] = 0
        if unique(cells, size):
            blanks -= 1
        else:
            cells[cell] = solution[cell]
    return cells


@dataclass(frozen=True, slots=True)
class Sheet:
    """The constant part of a puzzle: the solution, and the digits that the printed digits allow in each cell."""

    size: int
    solution: tuple[int, ...]
    allowed: tuple[frozenset[int], ...]


def allowed_digits(cells: list[int], size: int) -> tuple[frozenset[int], ...]:
    digits = frozenset(range(1, size + 1))
    return tuple(
        frozenset() if digit else digits - {cells[peer] for peer in _PEERS[size][cell]}
        for cell, digit in enumerate(cells)
    )


@register_puzzle("sudoku")
class Sudoku(Puzzle):
    __slots__ = ("cells", "initial_distance", "sheet", "wrong")

    name = "sudoku"
    rules = (
        f"Fill the empty cells ({EMPTY}) so that every row, column and box holds every digit once. "
        "Rows are a, b, c, ... from the top, columns A, B, C, ... from the left. Printed digits stay."
    )
    action_help = "row, column and digit: bC4 writes a 4 into row b, column C"
    action_pattern = re.compile("[a-i][A-I][1-9]")

    def __init__(self, sheet: Sheet, cells: list[int], wrong: int, initial_distance: int):
        self.sheet, self.cells, self.wrong, self.initial_distance = sheet, cells, wrong, initial_distance

    @classmethod
    def generate(cls, seed: int, split: str = TRAIN, *, size: int = 4, blanks: int | None = None) -> Sudoku:
        """Generate a grid with `blanks` empty cells, or fewer if the solution would not be unique."""
        if size not in _BLANKS:
            raise ConfigError(f"sudoku size={size}", rule="a sudoku has boxes of 2x2 or 3x3", fix="use size 4 or 9")
        blanks = _BLANKS[size] if blanks is None else blanks
        if not 1 <= blanks < size * size:
            raise ConfigError(f"sudoku blanks={blanks}", rule="some cells are empty", fix=f"use 1 to {size**2 - 1}")
        rng = stream(cls.name, seed, split)
        solution = full_grid(rng, size)
        while split_of("".join(map(str, solution))) != split:
            solution = full_grid(rng, size)
        cells = dig(rng, solution, size, blanks)
        empty = cells.count(0)
        return cls(Sheet(size, tuple(solution), allowed_digits(cells, size)), cells, empty, empty)

    def copy(self) -> Sudoku:
        return Sudoku(self.sheet, self.cells.copy(), self.wrong, self.initial_distance)

    def legal_actions(self) -> list[str]:
        size = self.sheet.size
        return [
            f"{place(cell, size)}{digit}" for cell, digits in enumerate(self.sheet.allowed) for digit in sorted(digits)
        ]

    def step(self, action: str) -> bool:
        size = self.sheet.size
        if not self.action_pattern.fullmatch(action):
            return False
        row, column, digit = _ROWS.index(action[0]), _COLUMNS.index(action[1]), int(action[2])
        cell = row * size + column
        if max(row, column) >= size or digit not in self.sheet.allowed[cell]:
            return False
        right = self.sheet.solution[cell]
        self.wrong += (digit != right) - (self.cells[cell] != right)
        self.cells[cell] = digit
        return True

    def distance(self) -> int:
        """Return the number of empty or wrong cells; each takes one action, in any order."""
        return self.wrong

    def value(self) -> float:
        return float(self.wrong == 0)

    def render(self) -> str:
        size = self.sheet.size
        text = bytes(self.cells).translate(_SIGNS).decode()
        return "\n".join(" ".join(text[start : start + size]) for start in range(0, len(text), size))

    def compact(self) -> str:
        """Return a word of letters, which can be one token, for each cell without a printed digit: the row, the column
        and the present digit of the cell, then the digits that none of its peers has."""
        cells, size = self.cells, self.sheet.size
        words = []
        for cell, digits in enumerate(self.sheet.allowed):
            if digits:
                held = {cells[peer] for peer in _PEERS[size][cell]}
                left = "".join(_LETTERS[digit] for digit in sorted(digits - held))
                words.append(place(cell, size) + _LETTERS[cells[cell]].upper() + left)
        return " ".join(words)
