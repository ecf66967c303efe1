"""A guide sees the map of a Plan-Path board and not the driver; a driver sees what is around it and not the map."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Literal

from verl_mas.cli._arguments import add_settings, values
from verl_mas.config.values import Count, load_dataclass
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.puzzles.data import FIRST_SEED, BoardItem
from verl_mas.gym.puzzles.game import COMPACT
from verl_mas.gym.puzzles.grid import FREE, MOVES, WALL, neighbours
from verl_mas.gym.puzzles.kinds.plan_path import GOAL, PlanPath, distances
from verl_mas.gym.puzzles.puzzle import SEED, Size, board, board_of, row
from verl_mas.gym.states import Letters, States
from verl_mas.gym.warmup import Generated, Lesson, WarmUp
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import ActionList, Malformed, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.client import DatasetFields

PUZZLE = "plan_path"
# Of rows and columns: different letters, so that a message is read without counting its places.
ROWS, COLUMNS = "abcdefghi", "123456789"
SOURCE, SHUFFLED = "guide_driver", "guide_driver_shuffled"
GUIDE = "guide_seed"  # of the board that the guide sees
# Larger than this, or nearer, a walk that does not know the goal often finds it.
SMALL: Size = {"size": 4, "walls": 3 / 16, "min_distance": 3}


@dataclass(frozen=True)
class GuidedBoardItem(BoardItem):
    guide_seed: int = 0

    def row(self, index: int, split: str) -> dict[str, object]:
        of_board = row(PUZZLE, self.seed, self.split, self.size)
        assert isinstance(of_board["extra_info"], dict)
        extra_info = {**of_board["extra_info"], "index": index, GUIDE: self.guide_seed}
        return of_board | {"data_source": self.source, "extra_info": extra_info}


def named(cell: int, size: int) -> str:
    """Row and column of a cell: b3."""
    row, column = divmod(cell, size)
    return ROWS[row] + COLUMNS[column]


def items(count: int, *, split: str, first: int = 0, size: Size = SMALL) -> list[GuidedBoardItem]:
    """Boards of a split by their numbers; no layout is in both splits."""
    rows = size.get("size")
    if not isinstance(rows, int) or rows > len(ROWS):
        raise ConfigError(f"size={rows}", rule=f"rows and columns have {len(ROWS)} names", fix="use size=4")
    seeds = range(first, first + count)
    return [GuidedBoardItem(f"{PUZZLE} {split} {seed}", "", SOURCE, seed, split, size, seed) for seed in seeds]


def shuffled(tasks: Sequence[GuidedBoardItem]) -> list[GuidedBoardItem]:
    """The control: the guide sees the board of the next task, so that its messages say nothing about the goal."""
    return [replace(task, source=SHUFFLED, guide_seed=other.seed) for task, other in with_next(tasks)]


def boards_of(extra_info: DatasetFields) -> tuple[PlanPath, PlanPath]:
    """The board that the driver is on, and the one that the guide sees."""
    puzzle = board_of(extra_info) if GUIDE in extra_info else None
    if not isinstance(puzzle, PlanPath):
        value = f"a row of {extra_info.get('puzzle')!r} with extra_info.{GUIDE}={extra_info.get(GUIDE)!r}"
        rule = f"guide_driver needs boards of {PUZZLE} and the seed of the board that the guide sees"
        raise DataError(value, rule=rule, fix="create them with `verl-mas data guide_driver`")
    seen = board_of({**extra_info, SEED: extra_info[GUIDE]})
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


GUIDE_MARK, DRIVER_MARK = "G", "D"  # the last mark of a compact prompt: which role is asked
NONE = "-"  # in a compact prompt: no move yet, nothing that could be read
WORDS = 2  # of the guide's message: a row and a column


@dataclass(frozen=True)
class Drive:
    puzzle: PlanPath
    seen: PlanPath  # the board that the guide sees
    message: str | None  # what it wrote last; None: it is to write
    moved: int = 0
    last: str = NONE

    def copy(self) -> Drive:
        return replace(self, puzzle=self.puzzle.copy())


@register_workflow("guide_driver")
class GuideDriver(States[Drive]):
    """The guide writes two letters, the driver makes one move per act. Reaching the goal alone is rewarded."""

    agents = ("guide", "driver")

    max_turns: Count = 6
    """The maximum number of moves."""

    speaks: Literal["once", "every_turn"] = "once"
    """once: the guide writes before the first move. every_turn: before each move; it then knows the last one."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few letters, for tiny models."""

    def longest_prompt(self, role: str) -> tuple[int, int]:
        return 1, 0

    async def run(self, task: Task, team: Team) -> Outcome:
        puzzle, seen = boards_of(task.extra_info)
        return await self.play(self.opening(puzzle, seen), team)

    def opening(self, puzzle: PlanPath, seen: PlanPath) -> Drive:
        return Drive(puzzle, seen, None if self.control == "none" else "")

    def over(self, state: Drive) -> bool:
        return state.puzzle.solved or state.moved == self.max_turns

    def actor(self, state: Drive) -> str:
        return "guide" if state.message is None else "driver"

    def after(self, reply: Reply, state: Drive) -> Drive:
        if state.message is None:
            written = reply.parse(self.message_codec(state))
            return replace(state, message="" if isinstance(written, Malformed) else written)
        moves = reply.parse(self.move_codec(state))
        return self.moved(state, None if isinstance(moves, Malformed) else moves[0])

    def unsaid(self, state: Drive) -> Drive | None:
        return replace(state, message="") if state.message is None else None

    def outcome(self, state: Drive) -> Outcome:
        solved = float(state.puzzle.solved)
        return Outcome(answer=state.puzzle.render(), reward=solved, info={"acc": solved, "turns": state.moved})

    def moved(self, drive: Drive, move: str | None) -> Drive:
        """A move that is not legal, or could not be read (None), changes nothing on the board."""
        puzzle = drive.puzzle.copy()
        if move is not None:
            puzzle.step(move)
        asks_again = self.speaks == "every_turn" and self.control == "none"
        return Drive(puzzle, drive.seen, None if asks_again else drive.message, drive.moved + 1, move or NONE)

    def message_codec(self, drive: Drive) -> Letters:
        size = drive.seen.board.size
        return Letters(ROWS[:size] + COLUMNS[:size], WORDS, None if self.text == COMPACT else "message")

    def move_codec(self, drive: Drive) -> ActionList:
        tag = None if self.text == COMPACT else "actions"
        return ActionList(drive.puzzle.action_pattern, 1, tag, drive.puzzle.action_help)

    def prompt(self, state: Drive) -> str:
        return self._compact(state) if self.text == COMPACT else "\n\n".join(self._words(state))

    def _compact(self, drive: Drive) -> str:
        if drive.message is None:
            last = drive.last if self.speaks == "every_turn" else ""
            return f"{_map(drive.seen)}{last}{GUIDE_MARK}"
        if self.control == "all":
            return f"{_map(drive.puzzle)}{_around(drive)}{drive.last}{DRIVER_MARK}"
        return f"{_around(drive)}{drive.last}{drive.message or NONE}{DRIVER_MARK}"

    def _words(self, drive: Drive) -> list[str]:
        size = drive.puzzle.board.size
        names = f"Rows are {', '.join(ROWS[:size])} from the top, columns {', '.join(COLUMNS[:size])} from the left."
        if drive.message is None:
            moved = f"The driver's last move: {drive.last}." if drive.last != NONE else "The driver has not moved yet."
            return [
                f"You guide a driver who does not see this map: walls {WALL}, free cells {FREE}, goal {GOAL}. {names}",
                drive.seen.board.picture,
                "You do not see the driver. " + (moved if self.speaks == "every_turn" else ""),
                self.message_codec(drive).prompt(),
            ]
        sides = ", ".join(f"{move} {kind}" for move, kind in zip(MOVES, _sides(drive.puzzle), strict=True))
        here = f"You are at {named(drive.puzzle.at, size)}. Around you: {sides} ({WALL} is a wall)."
        written = f"The guide, who sees the goal and not you, wrote: {drive.message or 'nothing that can be read'}"
        return [
            f"You drive to a goal on a map of {size} by {size} cells. {names}",
            *([drive.puzzle.render()] if self.control == "all" else []),
            f"{here} Your last move: {drive.last}.",
            *([written] if self.control == "none" else []),
            self.move_codec(drive).prompt(),
        ]


def _map(puzzle: PlanPath) -> str:
    board = puzzle.board
    return f"{board.layout}{named(board.goal, board.size)}"


def _around(drive: Drive) -> str:
    """Row and column of the driver, and the cells up, down, left and right of it."""
    return named(drive.puzzle.at, drive.puzzle.board.size) + _sides(drive.puzzle)


def _sides(puzzle: PlanPath) -> str:
    return "".join(FREE if move in puzzle.board.moves[puzzle.at] else WALL for move in MOVES)


def tiny_workflow(speaks: str, control: str) -> GuideDriver:
    """The workflow with prompts for a tiny model."""
    args = {"text": "compact", "speaks": speaks, "control": control}
    return load_dataclass(GuideDriver, args, "mas.workflow.args")


def lessons(workflow: GuideDriver, size: Size, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless; only training boards, with the workflow's prompts. `noise` is the share of messages that name any cell,
    and of moves that are random. The driver's messages are always right, so that it learns to read them."""
    rng = random.Random(f"lessons {seed}")
    number = FIRST_SEED * (seed + 1)
    while True:
        puzzle = board(PUZZLE, number, TRAIN, size)
        number += 1
        assert isinstance(puzzle, PlanPath)
        drive = workflow.opening(puzzle, puzzle)
        while not workflow.over(drive):
            if drive.message is None:
                cells = puzzle.board.size
                goal = named(puzzle.board.goal, cells)
                wrong = rng.choice(ROWS[:cells]) + rng.choice(COLUMNS[:cells])
                message = wrong if rng.random() < noise else goal
                yield Lesson("guide", workflow.prompt(drive), workflow.message_codec(drive).render(message))
                drive = replace(drive, message=goal)
            else:
                move = rng.choice(list(MOVES) if rng.random() < noise else drive.puzzle.best_actions())
                yield Lesson("driver", workflow.prompt(drive), workflow.move_codec(drive).render([move]))
                drive = workflow.moved(drive, move)


@DATA_SETS.register("guide_driver")
class GuideDriverData(Generated):
    """Boards for a guide and a driver. In the test every board is there twice, once with messages of another one."""

    # A vocabulary without merges: every cell and letter is one token.
    warm_up = WarmUp(
        hidden=32, initial=0.1, steps=1_000, batch=128, learning_rate=3e-3, lessons=120_000, texts=100, vocabulary=259
    )
    rows = (4096, 200)

    def options(self, parser: argparse.ArgumentParser) -> None:
        add_settings(parser, "--size", "settings of the boards")
        parser.add_argument("--speaks", default="once", help="once or every_turn, in the demonstrations")
        parser.add_argument("--control", default="none", help="none, all or part, in the demonstrations")

    def generate(self, options: argparse.Namespace) -> Prepared:
        size = _size(options)
        tiny_workflow(options.speaks, options.control)
        board(PUZZLE, 0, TRAIN, size)
        train = items(options.train_rows, split=TRAIN, first=options.seed * options.train_rows, size=size)
        # The same for every seed.
        held_out = items(options.test_rows, split=TEST, size=size)
        test = [*held_out, *shuffled(held_out)]
        return Prepared(train, test, test, {"guide_driver": {**size, "seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        workflow = tiny_workflow(options.speaks, options.control)
        return lessons(workflow, _size(options), noise=options.noise, seed=options.seed)


def _size(options: argparse.Namespace) -> Size:
    return {**SMALL, **values(options.size, "--size NAME=VALUE")}
