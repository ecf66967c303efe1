"""The data set `world`."""

import argparse
import json
from collections.abc import Sequence

from verl_mas.cli._arguments import add_rows, add_seed, add_settings, values
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared, check_left
from verl_mas.data.items import Item
from verl_mas.environment.worlds.world import OPTIONS, SEED, Setup, find

APART = 10_000_000  # distance between the first seeds of two training sets; held-out seeds are below this number


def episodes(world: str, seeds: Sequence[int], options: str) -> list[Item]:
    """Make one item per seed. Each seed starts one episode."""
    return [Item(f"{world} {seed}", "", world, extra={SEED: seed, OPTIONS: options}) for seed in seeds]


@DATA_SETS.register("world")
class Worlds(DataSet):
    """Episodes of a world, by their seeds, for the workflow `world`. Held-out episodes have other starts than the
    training episodes if the world has more than one start."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("world", metavar="HUB/NAME", help="such as open_spiel/tic_tac_toe")
        add_settings(parser, "--options", "options of the hub")
        add_rows(parser, train=1024, test=128)
        add_seed(parser, "seed of the training episodes; the held-out ones are the same for every seed")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        return prepared(options.world, values(options.options, "--options NAME=VALUE"), options)


def prepared(world: str, settings: dict[str, object], rows: argparse.Namespace) -> Prepared:
    _, kind, name = find(world)
    starts = kind.starts(Setup(name, options=settings))
    test = range(rows.test_rows)
    if starts in (None, 1):  # None: every seed has its own start; 1: all episodes start alike
        first = APART * (rows.seed + 1)
        train = range(first, first + rows.train_rows)
    else:
        check_left(world, starts, "start", rows.test_rows)
        train = range(rows.test_rows, min(starts, rows.test_rows + rows.train_rows))
    encoded = json.dumps(settings, sort_keys=True)
    held_out = episodes(world, test, encoded)
    return Prepared(episodes(world, train, encoded), held_out, held_out, {world: {"options": settings}})
