"""The data set `search`."""

from __future__ import annotations

import argparse

from verl_mas.cli.data._public import Reading, add_arguments
from verl_mas.data import sources
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.data.items import first_of_each, search_item


@DATA_SETS.register("search")
class Search(DataSet):
    """The search team's public sets, or files of your own."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        reading = Reading(load, options)
        train, test = reading.items(search_item, sources.SEARCH_TRAIN, sources.SEARCH_TEST)
        return reading.prepared(train, test, first_of_each(test, {}, otherwise=30))
