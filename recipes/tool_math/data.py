"""The data set `tool_math`: the math sets of AT-GRPO, for a reasoner and a tool user."""

from __future__ import annotations

from verl_mas.config.hydra.recipe.math.data import TEST, Math
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.sources import PublicSet

REVISION, ROWS = "296f8e34132e63f4a1d70e0dcc8bddebb43f03e4", 53_291


@DATA_SETS.register("tool_math")
class ToolMath(Math):
    """The math sets of a reasoner with a tool user: Polaris, AIME 2024 and 2025, OlympiadBench; or your own files."""

    train_sets = (PublicSet("polaris", "POLARIS-Project/Polaris-Dataset-53K", "train", REVISION, ROWS),)
    test_sets = tuple(one for one in TEST if one.name in ("aime24", "aime25", "olympiadbench"))
