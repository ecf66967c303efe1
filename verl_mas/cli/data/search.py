"""The data set `search`."""

from __future__ import annotations

from verl_mas.cli.data._public import Questions
from verl_mas.data import sources
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.items import search_item


@DATA_SETS.register("search")
class Search(Questions):
    """The search team's public sets, or files of your own."""

    train_sets, test_sets = sources.SEARCH_TRAIN, sources.SEARCH_TEST
    make = staticmethod(search_item)
    otherwise = 30
