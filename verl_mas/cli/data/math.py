"""The data set `math`."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.cli.data._public import Questions
from verl_mas.data import sources
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.items import math_item
from verl_mas.data.sources import PublicSet

# Questions per test set for validation during training.
IN_TRAINING = {"math500": 50, "aime24": 30, "aime25": 30, "amc23": 0, "olympiadbench": 0, "minerva": 0}


@DATA_SETS.register("math")
class Math(Questions):
    """The math team's public sets, or files of your own."""

    train_sets: Sequence[PublicSet] = sources.MATH_TRAIN
    test_sets: Sequence[PublicSet] = sources.MATH_TEST
    make = staticmethod(math_item)
    in_training = IN_TRAINING
    otherwise = 50
