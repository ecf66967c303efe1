"""The data set `arithmetic`."""

from __future__ import annotations

import argparse

from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.items import Item
from verl_mas.data.prepare import Prepared
from verl_mas.gym import arithmetic
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.warmup.arithmetic import DEFAULT, TEAMS, lessons
from verl_mas.gym.warmup.train import WarmUp

TAUGHT = WarmUp(steps=1_300, batch=64, learning_rate=4e-3, lessons=40_000)


@DATA_SETS.register("arithmetic")
class Arithmetic(DataSet):
    """Short sums for a tiny model."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--terms", type=int, default=3)
        parser.add_argument("--largest", type=int, default=9)
        parser.add_argument("--team", choices=TEAMS, default=DEFAULT, help="the workflow of the demonstrations")
        add_arguments(parser, train=640, test=160)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked(options, TAUGHT)
        of_size = {"terms": options.terms, "largest": options.largest}

        def items(split: str, count: int) -> list[Item]:
            return arithmetic.chains(count, **of_size, split=split, seed=options.seed)

        train, test = items("train", options.train_rows), items("test", options.test_rows)
        if options.noise is not None:
            teach(options, lessons(**of_size, noise=options.noise, seed=options.seed, team=options.team), taught)
        return Prepared(train, test, test, {"arithmetic": {**of_size, "seed": options.seed}})
