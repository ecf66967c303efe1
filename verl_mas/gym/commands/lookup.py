"""The data set `lookup`."""

from __future__ import annotations

import argparse

from verl_mas.cli._arguments import check_noise
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.prepare import Prepared
from verl_mas.gym import lookup
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.warmup.lookup import lessons
from verl_mas.gym.warmup.train import WarmUp
from verl_mas.util.splits import TEST, TRAIN

TAUGHT = WarmUp(steps=1_000, batch=64, learning_rate=2e-3, lessons=15_000, texts=2_000, vocabulary=4_096, initial=0.1)


@DATA_SETS.register("lookup")
class Lookup(DataSet):
    """Two steps through a table in shards, for a team or one agent, with the control of shuffled shards."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--shards", type=int, default=4)
        parser.add_argument("--keys", type=int, default=4, help="symbols per shard")
        parser.add_argument(
            "--worker-noise", type=float, metavar="SHARE", help="errors of workers and of single readers; as --noise"
        )
        add_arguments(parser, train=2_000, test=200)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked(options, TAUGHT)
        check_noise(options.worker_noise)
        lookup.check_size(options.shards, options.keys)
        size = {"shards": options.shards, "keys": options.keys}
        train = lookup.tasks(options.train_rows, **size, split=TRAIN, seed=options.seed)
        test = lookup.tasks(options.test_rows, **size, split=TEST, seed=options.seed)
        if options.noise is not None:
            worker_noise = options.noise if options.worker_noise is None else options.worker_noise
            source = lessons(**size, noise=options.noise, worker_noise=worker_noise, seed=options.seed)
            teach(options, source, taught)
        made = {**size, "seed": options.seed, "floor": float(lookup.floor(**size))}
        return Prepared(train, test, [*test, *lookup.shuffled(test)], {"lookup": made})
