"""Plan-Path: walk from the start to the goal on a grid with walls."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from verl_mas.errors import ConfigError
from verl_mas.puzzles.base import TRAIN, Puzzle, belongs, register_puzzle, stream

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
FREE, WALL, AGENT, GOAL = ".", "#", "A", "G"
# A row or a column of the grid.
NAMES = string.ascii_letters
# The letter of an offset of 0; beyond 12 they are shown as 12.
_ZERO, _FARTHEST = ord("m"), 12
_LARGEST = len(NAMES)
_ATTEMPTS = 10_000


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


def distances(goal: int, table: tuple[dict[str, int], ...]) -> list[int | None]:
    """The number of moves from every cell to the goal; None where there is no way."""
    far: list[int | None] = [None] * len(table)
    far[goal] = 0
    wave, length = [goal], 0
    while wave:
        length += 1
        ahead = []
        for cell in wave:
            for to in table[cell].values():
                if far[to] is None:
                    far[to] = length
                    ahead.append(to)
        wave = ahead
    return far


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


@dataclass(frozen=True, slots=True)
class Board:
    """What does not change while somebody walks."""

    size: int
    goal: int
    moves: tuple[dict[str, int], ...]
    to_goal: list[int | None]
    picture: str
    layout: str
    # The rows of the layout as the words of `compact`.
    words: str


def check_distance(min_distance: int) -> None:
    if min_distance < 1:
        raise ConfigError(f"min_distance={min_distance}", rule="a board is unsolved at first", fix="1 or more")


@register_puzzle("plan_path")
class PlanPath(Puzzle):
    __slots__ = ("at", "board", "initial_distance")

    name = "plan_path"
    rules = (
        f"The grid shows walls ({WALL}), free cells ({FREE}), you ({AGENT}) and the goal ({GOAL}). "
        "Walk to the goal; you cannot enter a wall or leave the grid."
    )
    action_help = "U, D, L, R: one cell up, down, left, right"
    action_pattern = re.compile("[UDLR]")

    def __init__(self, board: Board, at: int, initial_distance: int):
        self.board, self.at, self.initial_distance = board, at, initial_distance

    @classmethod
    def generate(
        cls, seed: int, split: str = TRAIN, *, size: int = 10, walls: float = 0.22, min_distance: int = 2
    ) -> PlanPath:
        """A board whose start is at least `min_distance` moves from the goal."""
        check_share("walls", walls)
        check_distance(min_distance)
        if not 2 <= size <= _LARGEST:
            raise ConfigError(f"size={size}", rule=f"a grid has 2 to {_LARGEST} rows", fix="a size in that range")
        rng = stream(cls.name, seed, split)
        cells = range(size * size)
        for _ in range(_ATTEMPTS):
            blocked = frozenset(rng.sample(cells, round(walls * len(cells))))
            layout = "".join(WALL if cell in blocked else FREE for cell in cells)
            if not belongs(layout, split):
                continue
            table = neighbours(size, blocked)
            goal = rng.choice([cell for cell in cells if cell not in blocked])
            to_goal = distances(goal, table)
            starts = [cell for cell in cells if (to_goal[cell] or 0) >= min_distance]
            if starts:
                return cls._on(size, goal, table, to_goal, layout, rng.choice(starts))
        raise ConfigError(
            f"plan_path size={size} walls={walls} min_distance={min_distance}",
            rule="there must be boards of this kind, with walls that tell training from testing",
            fix="another share of walls, a larger grid or a smaller min_distance",
        )

    @classmethod
    def _on(cls, size, goal, table, to_goal, layout, start) -> PlanPath:
        cells = layout[:goal] + GOAL + layout[goal + 1 :]
        rows = [cells[i : i + size] for i in range(0, len(cells), size)]
        words = " ".join(layout[i : i + size] for i in range(0, len(cells), size))
        return cls(Board(size, goal, table, to_goal, "\n".join(rows), layout, words), start, to_goal[start])

    def copy(self) -> PlanPath:
        return PlanPath(self.board, self.at, self.initial_distance)

    def legal_actions(self) -> list[str]:
        return list(self.board.moves[self.at])

    def step(self, action: str) -> bool:
        to = self.board.moves[self.at].get(action)
        if to is None:
            return False
        self.at = to
        return True

    def distance(self) -> int | None:
        return self.board.to_goal[self.at]

    def standing(self) -> float:
        return 1 - self.to_go() / self.initial_distance

    def render(self) -> str:
        spot = self.at + self.at // self.board.size
        picture = self.board.picture
        return picture[:spot] + AGENT + picture[spot + 1 :]

    def compact(self) -> str:
        """The rows of walls, the row and column of agent and goal, the way between, what is up, down, left, right."""
        board, at, size = self.board, self.at, self.board.size
        sides = "".join(FREE if move in board.moves[at] else WALL for move in MOVES)
        places = f"{AGENT}{place(at, size)} {GOAL}{place(board.goal, size)}"
        return f"{board.words} {places} {offset(at, board.goal, size)} {sides}"

    def key(self) -> tuple:
        return (self.at,)
