"""The data set `programs`."""

from __future__ import annotations

import argparse

from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.prepare import Prepared
from verl_mas.gym import programs
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.warmup.programs import lessons
from verl_mas.gym.warmup.train import WarmUp

TAUGHT = WarmUp(steps=1_300, batch=64, learning_rate=4e-3, lessons=40_000)


@DATA_SETS.register("programs")
class Programs(DataSet):
    """Tiny programming tasks for a tiny model."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_arguments(parser, train=1_000, test=200)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked(options, TAUGHT)
        train = programs.tasks(options.train_rows, split="train", seed=options.seed)
        test = programs.tasks(options.test_rows, split="test", seed=options.seed)
        if options.noise is not None:
            teach(options, lessons(noise=options.noise, seed=options.seed), taught)
        return Prepared(train, test, test, {"programs": {"seed": options.seed}})
