"""Plan-Path: walk from the start to the goal on a grid with walls."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_mas.errors import ConfigError
from verl_mas.puzzles.base import Puzzle, register_puzzle, stream
from verl_mas.puzzles.grid import FREE, MOVES, NAMES, WALL, check_distance, check_share, neighbours, offset, place
from verl_mas.splits import TRAIN, split_of

AGENT, GOAL = "A", "G"
_LARGEST = len(NAMES)
_ATTEMPTS = 10_000


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
            if split_of(layout) != split:
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
