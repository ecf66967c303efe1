"""The data set `math`: the sets of Dr. MAS, with revisions and row counts that several public projects pin."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.cli.data._public import Questions
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.items import math_item
from verl_mas.data.sources import PublicSet

TRAIN = (PublicSet("dapo_filter", "aaabiao/dapo_filter", "train"),)
TEST = (
    PublicSet("math500", "HuggingFaceH4/MATH-500", "test", "ff5b20257d8185524591543f8ff5993951537bb8", 500),
    PublicSet("aime24", "HuggingFaceH4/aime_2024", "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", 30),
    PublicSet("aime25", "MathArena/aime_2025", "train", "c94da77eb22bbd6439e62a323bec18493a421302", 30),
    PublicSet("amc23", "knoveleng/AMC-23", "train", rows=40),
    PublicSet("olympiadbench", "realtreetune/olympiadbench", "test"),
    PublicSet("minerva", "zwhe99/simplerl-minerva-math", "test", rows=272),
)
# Questions per test set for validation during training.
IN_TRAINING = {"math500": 50, "aime24": 30, "aime25": 30, "amc23": 0, "olympiadbench": 0, "minerva": 0}


@DATA_SETS.register("math")
class Math(Questions):
    """The math team's public sets, or files of your own."""

    train_sets: Sequence[PublicSet] = TRAIN
    test_sets: Sequence[PublicSet] = TEST
    make = staticmethod(math_item)
    in_training = IN_TRAINING
    otherwise = 50
