"""The data set `split_clues`."""

from __future__ import annotations

import argparse

from verl_mas.cli._arguments import check_share
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.prepare import Prepared
from verl_mas.gym import split_clues
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.warmup.split_clues import TAUGHT, lessons, tiny_workflow
from verl_mas.util.splits import TEST, TRAIN


@DATA_SETS.register("split_clues")
class SplitCluesData(DataSet):
    """Clues that are split between agents. In the test every task is there twice, once with messages of another one."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--parts", type=int, default=2, help="agents that have clues: 2, 3 or 4")
        parser.add_argument("--rounds", type=int, default=1, help="rounds of the demonstrations")
        parser.add_argument(
            "--decoys", type=float, metavar="SHARE", help="all agents also read a hint, wrong in this share of tasks"
        )
        add_arguments(parser, train=None, test=140)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked(options, TAUGHT)
        check_share("--decoys", options.decoys)
        kind = {"parts": options.parts, "decoys": options.decoys}
        train = split_clues.items(options.train_rows, split=TRAIN, seed=options.seed, **kind)
        # The same for every seed.
        held_out = split_clues.items(options.test_rows, split=TEST, **kind)
        test = [*held_out, *split_clues.shuffled(held_out)]
        if options.noise is not None:
            workflow = tiny_workflow(options.parts, options.rounds)
            teach(options, lessons(workflow, noise=options.noise, decoys=options.decoys, seed=options.seed), taught)
        return Prepared(train, test, test, {"split_clues": {**kind, "seed": options.seed}})
