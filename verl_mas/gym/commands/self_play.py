"""The data set `self_play`."""

from __future__ import annotations

import argparse

from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.prepare import Prepared
from verl_mas.gym.games.base import GAMES
from verl_mas.gym.generated import add_warm_up, checked_warm_up, teach
from verl_mas.gym.starts import starts
from verl_mas.gym.warmup.games import lessons
from verl_mas.gym.warmup.train import WarmUp
from verl_mas.util.splits import TEST, TRAIN

TAUGHT = WarmUp(steps=600, lessons=60_000)


@DATA_SETS.register("self_play")
class SelfPlay(DataSet):
    """The starts of a game of two players, for workflow self_play."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--game", default="tic_tac_toe", help="one that `verl-mas list games` lists")
        add_warm_up(parser)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked_warm_up(options, TAUGHT)
        train, test = starts(options.game, TRAIN), starts(options.game, TEST)
        if options.noise is not None:
            teach(options, lessons(options.game, noise=options.noise, seed=options.seed), taught)
        return Prepared(train, test, test, {options.game: {}}, keep_overlap=GAMES[options.game].dealt)
