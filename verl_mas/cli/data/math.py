"""The data set `math`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from verl_mas.cli.data._public import Reading, add_arguments
from verl_mas.data import sources
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.data.items import first_of_each, math_item
from verl_mas.data.sources import PublicSet

# Questions per test set for validation during training.
IN_TRAINING = {"math500": 50, "aime24": 30, "aime25": 30, "amc23": 0, "olympiadbench": 0, "minerva": 0}


@DATA_SETS.register("math")
class Math(DataSet):
    """The math team's public sets, or files of your own."""

    train_sets: Sequence[PublicSet] = sources.MATH_TRAIN
    test_sets: Sequence[PublicSet] = sources.MATH_TEST

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        reading = Reading(load, options)
        train, test = reading.items(math_item, self.train_sets, self.test_sets)
        # If all sets are for the final test only, validate on all of them.
        return reading.prepared(train, test, first_of_each(test, IN_TRAINING, otherwise=50) or test)
