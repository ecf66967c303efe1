"""Boards of Plan-Path for a guide who does not see the driver, and a driver who does not see the map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from verl_mas.data.items import Item, with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.puzzles import boards
from verl_mas.gym.puzzles.boards import Size
from verl_mas.gym.puzzles.grid import WALL, neighbours
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath, distances
from verl_mas.workflow.client import DatasetFields

PUZZLE = "plan_path"
# Of rows and columns: different letters, so that a message is read without counting its places.
ROWS, COLUMNS = "abcdefghi", "123456789"
SOURCE, SHUFFLED = "guide_driver", "guide_driver_shuffled"
# The seed of the board that the guide sees.
GUIDE = "guide_seed"
# Larger than this, or nearer, a walk that does not know the goal often finds it.
SMALL: Size = {"size": 4, "walls": 3 / 16, "min_distance": 3}


@dataclass(frozen=True)
class BoardItem(Item):
    seed: int = 0
    guide_seed: int = 0
    split: str = ""
    size: Size | None = None

    def row(self, index: int, split: str) -> dict[str, object]:
        board = boards.row(PUZZLE, self.seed, self.split, self.size or {})["extra_info"]
        assert isinstance(board, dict)
        return super().row(index, split) | {"extra_info": {**board, "index": index, GUIDE: self.guide_seed}}


def named(cell: int, size: int) -> str:
    """Row and column of a cell: b3."""
    row, column = divmod(cell, size)
    return ROWS[row] + COLUMNS[column]


def items(count: int, *, split: str, first: int = 0, size: Size = SMALL) -> list[BoardItem]:
    """Boards of a split by their numbers; no layout is in both splits."""
    rows = size.get("size")
    if not isinstance(rows, int) or rows > len(ROWS):
        raise ConfigError(f"size={rows}", rule=f"rows and columns have {len(ROWS)} names", fix="use size=4")
    seeds = range(first, first + count)
    return [BoardItem(f"{PUZZLE} {split} {seed}", "", SOURCE, seed, seed, split, size) for seed in seeds]


def shuffled(tasks: Sequence[BoardItem]) -> list[BoardItem]:
    """The control: the guide sees the board of the next task, so that its messages say nothing about the goal."""
    return [replace(task, source=SHUFFLED, guide_seed=other.seed) for task, other in with_next(tasks)]


def boards_of(extra_info: DatasetFields) -> tuple[PlanPath, PlanPath]:
    """The board that the driver is on, and the one that the guide sees."""
    puzzle = boards.board_of(extra_info) if GUIDE in extra_info else None
    if not isinstance(puzzle, PlanPath):
        raise DataError(
            f"a row of {extra_info.get('puzzle')!r} with extra_info.{GUIDE}={extra_info.get(GUIDE)!r}",
            rule=f"guide_driver needs boards of {PUZZLE} and the seed of the board that the guide sees",
            fix="create them with `verl-mas data guide_driver`",
        )
    seen = boards.board_of({**extra_info, boards.SEED: extra_info[GUIDE]})
    assert isinstance(seen, PlanPath)
    return puzzle, seen


def blind_bound(tasks: Iterable[PlanPath], moves: int, min_distance: int) -> float:
    """The expected share of boards that a driver reaches the goal of within `moves`, if it knows walls and start and
    not the goal, and walks where goals are likely. No driver without messages is better."""
    return fmean(_blind(task.board.layout, task.board.size, task.at, moves, min_distance) for task in tasks)


@cache
def _blind(layout: str, size: int, start: int, moves: int, min_distance: int) -> float:
    """The largest share of goals on one walk, each as likely as `PlanPath.generate` makes it from this start."""
    table = neighbours(size, frozenset(cell for cell, kind in enumerate(layout) if kind == WALL))
    likely: dict[int, float] = {}
    for goal in (cell for cell, kind in enumerate(layout) if kind != WALL):
        far = distances(goal, table)
        starts = [cell for cell, distance in enumerate(far) if distance is not None and distance >= min_distance]
        if start in starts:
            likely[goal] = 1 / len(starts)
    # All (cell, cells seen) that a walk can have after each move.
    walks = {(start, frozenset([start]))}
    for _ in range(moves):
        walks = {(to, seen | {to}) for cell, seen in walks for to in table[cell].values()}
    return max(sum(likely.get(cell, 0.0) for cell in seen) for _, seen in walks) / sum(likely.values())
