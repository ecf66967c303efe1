"""Plan-Path: walk from the start to the goal on a grid with walls, on which moves may slip."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Annotated

from verl_mas.config.values import Below, Count, Range
from verl_mas.errors import ConfigError
from verl_mas.gym.puzzles.grid import FREE, MOVES, NAMES, WALL, Walls, neighbours, offset, place, steps_from
from verl_mas.gym.puzzles.puzzle import Puzzle, register_puzzle, stream
from verl_mas.util.splits import TRAIN, split_of

AGENT, GOAL = "A", "G"
_ATTEMPTS = 10_000


def distances(goal: int, table: tuple[dict[str, int], ...]) -> list[int | None]:
    """Return the number of moves from each cell to the goal; None where the goal is unreachable."""
    lengths = steps_from([goal], lambda cell: table[cell].values())
    return [lengths.get(cell) for cell in range(len(table))]


@dataclass(frozen=True, slots=True)
class Board:
    """The constant part of a puzzle, shared by its copies."""

    size: int
    goal: int
    moves: tuple[dict[str, int], ...]
    to_goal: list[int | None]
    picture: str
    layout: str
    slip: float  # the probability that a move slips


@register_puzzle("plan_path")
class PlanPath(Puzzle):
    __slots__ = ("at", "board", "initial_distance", "moved", "seed")

    name = "plan_path"
    rules = (
        f"The grid shows walls ({WALL}), free cells ({FREE}), you ({AGENT}) and the goal ({GOAL}). "
        "Walk to the goal; you cannot enter a wall or leave the grid."
    )
    action_help = "U, D, L, R: one cell up, down, left, right"
    action_pattern = re.compile("[UDLR]")

    def __init__(self, board: Board, at: int, initial_distance: int, seed: int = 0, moved: int = 0):
        self.board, self.at, self.initial_distance = board, at, initial_distance
        # Slips depend on the seed and on the number of moves so far.
        self.seed, self.moved = seed, moved

    @classmethod
    def generate(
        cls,
        seed: int,
        split: str = TRAIN,
        *,
        size: Annotated[int, Range(2, len(NAMES))] = 10,
        walls: Walls = 0.22,
        min_distance: Count = 2,
        slip: Annotated[float, Range(0), Below(1)] = 0.0,
    ) -> PlanPath:
        """Generate a board whose start is at least `min_distance` moves from the goal. A move slips with probability
        `slip`."""
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
            starts = [(cell, far) for cell, far in enumerate(to_goal) if far is not None and far >= min_distance]
            if starts:
                drawn = layout[:goal] + GOAL + layout[goal + 1 :]
                picture = "\n".join(drawn[i : i + size] for i in range(0, len(drawn), size))
                board = Board(size, goal, table, to_goal, picture, layout, slip)
                return cls(board, *rng.choice(starts), seed)
        value = f"plan_path size={size} walls={walls} min_distance={min_distance}"
        fix = "change the share of walls, use a larger grid or a smaller min_distance"
        raise ConfigError(value, rule=f"one of {_ATTEMPTS} random grids must be a {split} board of this kind", fix=fix)

    def copy(self) -> PlanPath:
        return PlanPath(self.board, self.at, self.initial_distance, self.seed, self.moved)

    @property
    def chance(self) -> str:
        if not self.board.slip:
            return ""
        return f"With probability {self.board.slip:g} a move slips: it goes in another direction that is free."

    def reseed(self, rng: random.Random) -> None:
        self.seed, self.moved = rng.getrandbits(64), 0

    def certain(self) -> PlanPath:
        twin = self.copy()
        twin.board = replace(self.board, slip=0.0) if self.board.slip else self.board
        return twin

    def legal_actions(self) -> list[str]:
        return list(self.board.moves[self.at])

    def step(self, action: str) -> bool:
        to = self.board.moves[self.at].get(action)
        if to is None:
            return False
        self.at = self._slipped(to) if self.board.slip else to
        self.moved += 1
        return True

    def _slipped(self, to: int) -> int:
        """Return the cell in which a move to `to` ends. A move that does not slip ends in `to`. A move that slips ends
        in another free neighbour of the current cell or, if there is no other, in the current cell."""
        draw = blake2b(f"{self.seed}/{self.moved}".encode(), digest_size=8).digest()
        number = int.from_bytes(draw, "little") / 2**64
        if number >= self.board.slip:
            return to
        others = [cell for cell in self.board.moves[self.at].values() if cell != to]
        return others[int(number / self.board.slip * len(others))] if others else self.at

    def distance(self) -> int | None:
        return self.board.to_goal[self.at]

    def value(self) -> float:
        return 1 - self.bounded_distance() / self.initial_distance

    def render(self) -> str:
        index = self.at + self.at // self.board.size
        picture = self.board.picture
        return picture[:index] + AGENT + picture[index + 1 :]

    def compact(self) -> str:
        """Format the state as words: the rows of the grid with their walls, the positions of agent and goal, the offset
        between these positions, and the cells up, down, left and right of the agent."""
        board, at, size = self.board, self.at, self.board.size
        walls = board.picture.replace(GOAL, FREE).replace("\n", " ")
        places = f"{AGENT}{place(at, size)} {GOAL}{place(board.goal, size)}"
        return f"{walls} {places} {offset(at, board.goal, size)} {self.sides}"

    @property
    def sides(self) -> str:
        return "".join(FREE if move in self.board.moves[self.at] else WALL for move in MOVES)
