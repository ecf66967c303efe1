"""The data set `puzzle`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from verl_mas.cli._arguments import add_settings, values, whole
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.items import Item
from verl_mas.data.prepare import Prepared
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.puzzles import boards
from verl_mas.gym.puzzles.boards import Size
from verl_mas.gym.warmup.puzzles import lessons, tiny_workflow
from verl_mas.gym.warmup.train import WarmUp
from verl_mas.user_code import load_module
from verl_mas.util.splits import TEST, TRAIN

TAUGHT = WarmUp()


@dataclass(frozen=True)
class BoardItem(Item):
    """A board, which its seed makes."""

    seed: int = 0
    split: str = ""
    size: Size = field(default_factory=dict)

    def row(self, index: int, split: str) -> dict[str, object]:
        return boards.row(self.source, self.seed, self.split, self.size)


@DATA_SETS.register("puzzle")
class PuzzleData(DataSet):
    """Boards of a puzzle, for a team that plays on them: Plan-Path, Sokoban, Sudoku, or a puzzle of your own."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "puzzle", metavar="PUZZLE", help="one that `verl-mas list puzzles` lists, or one of --plugins"
        )
        parser.add_argument(
            "--plugins",
            action="append",
            default=[],
            metavar="FILE",
            help="a Python file or module that registers a puzzle or a workflow; may be given several times",
        )
        add_settings(parser, "--size", "settings of the boards: the arguments of the puzzle's `generate`")
        add_settings(parser, "--practice", "settings of the training boards, where they differ")
        parser.add_argument(
            "--first-test", type=whole(0), default=0, metavar="N", help="number of the first held-out board"
        )
        parser.add_argument(
            "--workflow", default="planner_executor", help="the workflow with whose prompts the model is warmed up"
        )
        add_settings(parser, "--args", "arguments of that workflow")
        add_arguments(parser, train=4096, test=200)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        for where in options.plugins:
            load_module(where, "--plugins")
        taught = checked(options, TAUGHT)
        size = values(options.size, "--size NAME=VALUE")
        practice = size | values(options.practice, "--practice NAME=VALUE")
        arguments = values(options.args, "--args NAME=VALUE")
        workflow = tiny_workflow(options.workflow, arguments) if options.noise is not None else None
        # Fail before anything is written if one of the boards cannot be made.
        boards.board(options.puzzle, 0, TRAIN, practice)
        boards.board(options.puzzle, 0, TEST, size)
        train = items(options.puzzle, options.train_rows, TRAIN, options.seed * options.train_rows, practice)
        # The same for every seed.
        test = items(options.puzzle, options.test_rows, TEST, options.first_test, size)
        if workflow:
            source = lessons(workflow, options.puzzle, practice, noise=options.noise, seed=options.seed)
            teach(options, source, taught)
        made = {"seed": options.seed, "size": size, "practice": practice, "first_test": options.first_test}
        return Prepared(train, test, test, {options.puzzle: made})


def items(puzzle: str, count: int, split: str, first: int, size: Size) -> list[BoardItem]:
    """Boards of a split by their numbers, from `first`."""
    seeds = range(first, first + count)
    return [BoardItem(f"{puzzle} {split} {seed}", "", puzzle, seed, split, size) for seed in seeds]
