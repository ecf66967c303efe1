"""The data set `reasoning_gym`."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_mas.cli._arguments import add_rows, add_seed, add_settings, values
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.data.items import Item
from verl_mas.data.reasoning_gym import rows
from verl_mas.environment.worlds.hubs.reasoning_gym import gym
from verl_mas.util.splits import TEST, TRAIN


@dataclass(frozen=True)
class GymItem(Item):
    """A question whose row identifies the item with which reasoning-gym scores the answers."""

    made: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The unchanged question, because whitespace and capitals matter in some tasks. `rows` makes each question only
        once."""
        return self.question

    def row(self, index: int, split: str) -> dict[str, object]:
        return dict(self.made)


@DATA_SETS.register("reasoning_gym")
class ReasoningGym(DataSet):
    """Questions of a single-turn task of reasoning-gym, which its own verifier scores."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("task", metavar="TASK", help="maze, countdown, gsm_symbolic, ...")
        add_settings(parser, "--config", "settings of the task")
        add_rows(parser, train=1024, test=200)
        add_seed(parser, "seed of the training questions; the held-out ones are the same for every seed")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        gym.require()
        config = values(options.config, "--config NAME=VALUE")
        train, test = (
            [_item(row) for row in rows(options.task, count, split, options.seed, config)]
            for split, count in ((TRAIN, options.train_rows), (TEST, options.test_rows))
        )
        return Prepared(train, test, test, {options.task: {"seed": options.seed, "config": config}})


def _item(row: Mapping[str, object]) -> GymItem:
    return GymItem(str(row["prompt"]), "", str(row["data_source"]), row)
