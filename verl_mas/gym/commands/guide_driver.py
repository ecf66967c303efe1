"""The data set `guide_driver`."""

from __future__ import annotations

import argparse

from verl_mas.cli._arguments import add_settings, values
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.prepare import Prepared
from verl_mas.gym import guide_driver
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.puzzles.boards import board
from verl_mas.gym.warmup.guide_driver import lessons, tiny_workflow
from verl_mas.gym.warmup.train import WarmUp
from verl_mas.util.splits import TEST, TRAIN

# A vocabulary without merges: every cell and letter is one token.
TAUGHT = WarmUp(
    hidden=32, initial=0.1, steps=1_000, batch=128, learning_rate=3e-3, lessons=120_000, texts=100, vocabulary=259
)


@DATA_SETS.register("guide_driver")
class GuideDriverData(DataSet):
    """Boards for a guide and a driver. In the test every board is there twice, once with messages of another one."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_settings(parser, "--size", "settings of the boards")
        parser.add_argument("--speaks", default="once", help="once or every_turn, in the demonstrations")
        parser.add_argument("--control", default="none", help="none, all or part, in the demonstrations")
        add_arguments(parser, train=4096, test=200)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked(options, TAUGHT)
        size = {**guide_driver.SMALL, **values(options.size, "--size NAME=VALUE")}
        workflow = tiny_workflow(options.speaks, options.control)
        board(guide_driver.PUZZLE, 0, TRAIN, size)
        first = options.seed * options.train_rows
        train = guide_driver.items(options.train_rows, split=TRAIN, first=first, size=size)
        # The same for every seed.
        held_out = guide_driver.items(options.test_rows, split=TEST, size=size)
        test = [*held_out, *guide_driver.shuffled(held_out)]
        if options.noise is not None:
            teach(options, lessons(workflow, size, noise=options.noise, seed=options.seed), taught)
        return Prepared(train, test, test, {"guide_driver": {**size, "seed": options.seed}})
