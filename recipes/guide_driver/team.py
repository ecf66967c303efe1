"""A guide sees the map of a Plan-Path board but not the driver; a driver sees its surroundings but not the map."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from verl_mas.cli._arguments import add_settings, values
from verl_mas.config.hydra.recipe.split_clues.states import Letters, States
from verl_mas.config.values import Count, Range
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import with_next
from verl_mas.errors import ConfigError, DataError
from verl_mas.gym.puzzles.data import FIRST_SEED, BoardItem
from verl_mas.gym.puzzles.game import COMPACT
from verl_mas.gym.puzzles.grid import FREE, MOVES, WALL, place
from verl_mas.gym.puzzles.kinds.plan_path import GOAL, PlanPath
from verl_mas.gym.puzzles.puzzle import SEED, Size, board, board_of, row
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, tiny
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import ActionList, Malformed, Message, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.client import DatasetFields
from verl_mas.workflow.team import Prompt

if TYPE_CHECKING:
    from PIL.Image import Image

PUZZLE = "plan_path"
# Names of rows and columns. They are different letters, so that a message can be read without counting positions.
ROWS, COLUMNS = "abcdefghi", "123456789"
named = partial(place, rows=ROWS, columns=COLUMNS)  # row and column of a cell: b3
SOURCE, SHUFFLED = "guide_driver", "guide_driver_shuffled"
GUIDE = "guide_seed"  # seed of the board that the guide sees
# On smaller boards, or with a nearer goal, a driver that does not know the goal would find it more often.
SMALL: Size = {"size": 4, "walls": 3 / 16, "min_distance": 3}


@dataclass(frozen=True)
class GuidedBoardItem(BoardItem):
    guide_seed: int

    def row(self, index: int, split: str) -> dict[str, object]:
        of_board = row(PUZZLE, self.seed, self.split, self.size)
        assert isinstance(of_board["extra_info"], dict)
        extra_info = {**of_board["extra_info"], "index": index, GUIDE: self.guide_seed}
        return of_board | {"data_source": self.source, "extra_info": extra_info}


def items(count: int, *, split: str, first: int = 0, size: Size = SMALL) -> list[GuidedBoardItem]:
    """Return boards of a split by their numbers; no layout is in both splits."""
    rows = size.get("size")
    if not isinstance(rows, int) or rows > len(ROWS):
        raise ConfigError(f"size={rows}", rule=f"rows and columns have {len(ROWS)} names", fix="use size=4")
    seeds = range(first, first + count)
    return [GuidedBoardItem(f"{PUZZLE} {split} {seed}", "", SOURCE, seed, split, size, seed) for seed in seeds]


def shuffled(tasks: Sequence[GuidedBoardItem]) -> list[GuidedBoardItem]:
    """The control: the guide sees the board of the next task, so that its messages say nothing about the goal."""
    return [replace(task, source=SHUFFLED, guide_seed=other.seed) for task, other in with_next(tasks)]


def boards_of(extra_info: DatasetFields) -> tuple[PlanPath, PlanPath]:
    """Generate the board of the driver, and the board that the guide sees."""
    puzzle = board_of(extra_info) if GUIDE in extra_info else None
    if not isinstance(puzzle, PlanPath):
        value = f"a row of {extra_info.get('puzzle')!r} with extra_info.{GUIDE}={extra_info.get(GUIDE)!r}"
        rule = f"guide_driver needs boards of {PUZZLE} and the seed of the board that the guide sees"
        raise DataError(value, rule=rule, fix="create them with `verl-mas data guide_driver`")
    seen = board_of({**extra_info, SEED: extra_info[GUIDE]})
    assert isinstance(seen, PlanPath)
    return puzzle, seen


GUIDE_MARK, DRIVER_MARK = "G", "D"  # the last mark of a compact prompt: the role that acts
NONE = "-"  # in a compact prompt: no move yet, or nothing readable
WORDS = 2  # in the guide's message: a row and a column
PICTURE = "picture"
Colour = tuple[int, int, int]
LINE: Colour = (128, 128, 128)  # colour above and left of each cell in a picture
LOOKS = 4  # in lessons with pictures, the driver moves on only one board in LOOKS
COLOURS: dict[str, Colour] = {FREE: (255, 255, 255), WALL: (0, 0, 0), GOAL: (0, 192, 0)}


@dataclass(frozen=True)
class Drive:
    puzzle: PlanPath
    seen: PlanPath  # the board that the guide sees
    message: str | None  # the guide's last message; None: the guide has to write it
    moved: int = 0
    last: str = NONE

    def copy(self) -> Drive:
        return replace(self, puzzle=self.puzzle.copy())


@register_workflow("guide_driver")
class GuideDriver(States[Drive]):
    """The guide writes two letters, and the driver makes one move per act. Only reaching the goal is rewarded."""

    agents = ("guide", "driver")

    max_turns: Count = 6
    """The maximum number of moves."""

    speaks: Literal["once", "every_turn"] = "once"
    """once: the guide writes before the first move. every_turn: it writes before each move, and knows the last move."""

    map: Literal["text", "picture"] = "text"
    """Form of the map for the agent that sees it. picture: a white image with black walls and a green goal."""

    cell: Annotated[int, Range(2, 256)] = 16
    """Pixels of a cell's side in a picture."""

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
        """Return the state after a move. An illegal or unreadable (None) move changes nothing on the board."""
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

    def picture(self, drive: Drive) -> Image | None:
        """Return the picture for the agent that acts next, in addition to its text."""
        if self.map != PICTURE or not (drive.message is None or self.control == "all"):
            return None
        return drawn(drive.seen.board.picture.split(), self.cell)

    def asked(self, state: Drive) -> Prompt:
        picture = self.picture(state)
        return self.prompt(state) if picture is None else asked(picture, self.prompt(state))

    def _map(self, puzzle: PlanPath) -> str:
        return "" if self.map == PICTURE else f"{puzzle.board.layout}{named(puzzle.board.goal, puzzle.board.size)}"

    def _compact(self, drive: Drive) -> str:
        if drive.message is None:
            last = drive.last if self.speaks == "every_turn" else ""
            return f"{self._map(drive.seen)}{last}{GUIDE_MARK}"
        if self.control == "all":
            return f"{self._map(drive.puzzle)}{_around(drive)}{drive.last}{DRIVER_MARK}"
        return f"{_around(drive)}{drive.last}{drive.message or NONE}{DRIVER_MARK}"

    def _words(self, drive: Drive) -> list[str]:
        size = drive.puzzle.board.size
        names = f"Rows are {', '.join(ROWS[:size])} from the top, columns {', '.join(COLUMNS[:size])} from the left."
        legend = "walls black, free cells white, goal green"
        if self.map != PICTURE:
            legend = f"walls {WALL}, free cells {FREE}, goal {GOAL}"
        if drive.message is None:
            moved = f"The driver's last move: {drive.last}." if drive.last != NONE else "The driver has not moved yet."
            return [
                f"You guide a driver who does not see this map: {legend}. {names}",
                *([] if self.map == PICTURE else [drive.seen.board.picture]),
                "You do not see the driver. " + (moved if self.speaks == "every_turn" else ""),
                self.message_codec(drive).prompt(),
            ]
        sides = ", ".join(f"{move} {kind}" for move, kind in zip(MOVES, drive.puzzle.sides, strict=True))
        here = f"You are at {named(drive.puzzle.at, size)}. Around you: {sides} ({WALL} is a wall)."
        written = f"The guide, who sees the goal and not you, wrote: {drive.message or 'nothing that can be read'}"
        return [
            f"You drive to a goal on a map of {size} by {size} cells. {names}",
            *([legend if self.map == PICTURE else drive.puzzle.render()] if self.control == "all" else []),
            f"{here} Your last move: {drive.last}.",
            *([written] if self.control == "none" else []),
            self.move_codec(drive).prompt(),
        ]


def drawn(rows: Sequence[str], cell: int) -> Image:
    """Draw a square of `cell` by `cell` pixels for each letter, in the letter's colour."""
    from PIL import Image

    cells = np.array([[COLOURS[letter] for letter in row] for row in rows], np.uint8)
    pixels = cells.repeat(cell, axis=0).repeat(cell, axis=1)
    pixels[::cell] = pixels[:, ::cell] = LINE
    return Image.fromarray(pixels)


def asked(picture: Image, text: str) -> list[Message]:
    """Make a prompt with a picture above its text."""
    return [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": text}]}]


def _around(drive: Drive) -> str:
    """Describe the row and column of the driver, and the cells up, down, left and right of it."""
    return named(drive.puzzle.at, drive.puzzle.board.size) + drive.puzzle.sides


def lessons(workflow: GuideDriver, size: Size, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly, on training boards only, with the workflow's prompts.

    `noise` is the share of the guide's messages that name a random cell, and of the driver's moves that are random. The
    driver's prompts have the right message even then, so that the driver learns to read messages.
    """
    rng = random.Random(f"lessons {seed}")
    number = FIRST_SEED * (seed + 1)
    while True:
        puzzle = board(PUZZLE, number, TRAIN, size)
        number += 1
        assert isinstance(puzzle, PlanPath)
        drive = workflow.opening(puzzle, puzzle)
        # Seeing is harder to learn than moving, so with pictures the guide looks at more boards than the driver drives
        # on.
        driven = drive.message is not None or workflow.map != PICTURE or number % LOOKS == 0
        while not workflow.over(drive) and (driven or drive.message is None):
            if drive.message is None:
                cells = puzzle.board.size
                goal = named(puzzle.board.goal, cells)
                wrong = rng.choice(ROWS[:cells]) + rng.choice(COLUMNS[:cells])
                message = wrong if rng.random() < noise else goal
                reply = workflow.message_codec(drive).render(message)
                yield Lesson("guide", workflow.prompt(drive), reply, workflow.picture(drive))
                drive = replace(drive, message=goal)
            else:
                move = rng.choice(list(MOVES) if rng.random() < noise else drive.puzzle.best_actions())
                reply = workflow.move_codec(drive).render([move])
                yield Lesson("driver", workflow.prompt(drive), reply, workflow.picture(drive))
                drive = workflow.moved(drive, move)


@DATA_SETS.register("guide_driver")
class GuideDriverData(Generated):
    """Boards for a guide and a driver. The test has each board twice; the second time the guide sees another board."""

    # A vocabulary without merges, so that every cell and letter is one token.
    warm_up = WarmUp(
        hidden=32, initial=0.1, steps=1_000, batch=128, learning_rate=3e-3, lessons=120_000, texts=100, vocabulary=259
    )
    rows = (4096, 200)
    of_demonstrations = ("speaks", "control", "map")

    def options(self, parser: argparse.ArgumentParser) -> None:
        add_settings(parser, "--size", "settings of the boards")
        parser.add_argument("--speaks", default="once", help="once or every_turn, in the demonstrations")
        parser.add_argument("--control", default="none", help="none, all or part, in the demonstrations")
        parser.add_argument("--map", default="text", help="text or picture, in the demonstrations")

    def generate(self, options: argparse.Namespace) -> Prepared:
        size = _size(options)
        board(PUZZLE, 0, TRAIN, size)
        train = items(options.train_rows, split=TRAIN, first=options.seed * options.train_rows, size=size)
        # The test rows are the same for every seed.
        held_out = items(options.test_rows, split=TEST, size=size)
        test = [*held_out, *shuffled(held_out)]
        return Prepared(train, test, test, {"guide_driver": {**size, "seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        workflow = tiny(GuideDriver, speaks=options.speaks, control=options.control, map=options.map)
        return lessons(workflow, _size(options), noise=options.noise, seed=options.seed)


def _size(options: argparse.Namespace) -> Size:
    return {**SMALL, **values(options.size, "--size NAME=VALUE")}
