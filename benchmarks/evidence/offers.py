"""Tasks of `unequal_roles`. The scout knows a customer, and the judge chooses the offer that suits this customer."""

from __future__ import annotations

import argparse
import random

from verl_mas.cli._arguments import add_rows, add_seed
from verl_mas.config.hydra.recipe.smollm2.model import write_model
from verl_mas.config.hydra.recipe.smollm2.words import COLOURS, SOURCE, THINGS, shuffled
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.data.items import Item
from verl_mas.util.splits import TEST, TRAIN, split_of

OFFERS = 3


@DATA_SETS.register("offers")
class Offers(DataSet):
    """Tasks in which the scout knows the colour that a customer likes, and the judge has an offer in each of three
    colours. The split is by pairs of colour and thing. The test has every task twice: as it is, and with the scout's
    colour taken from another task."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_rows(parser, train=512, test=24)
        add_seed(parser, "seed of the tasks")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        train = offers(options.train_rows, TRAIN, options.seed)
        held_out = offers(options.test_rows, TEST, seed=0)
        write_model(options.out / "model")
        test = [*held_out, *shuffled(held_out)]
        return Prepared(train, test, test, {"offers": {"seed": options.seed}})


def offers(count: int, split: str, seed: int) -> list[Item]:
    rng = random.Random(f"offers {split} {seed}")
    return [_offer(rng, split) for _ in range(count)]


def _offer(rng: random.Random, split: str) -> Item:
    while True:
        pairs = list(zip(rng.sample(COLOURS, OFFERS), rng.sample(THINGS, OFFERS), strict=True))
        colour, thing = rng.choice(pairs)
        if split_of(f"{colour} {thing}") == split:
            break
    known, own = f"The customer likes {colour}.", "Offers: " + ", ".join(map(" ".join, pairs))
    secret = {"kind": "offers", "known": known, "own": own, "answer": f"{colour} {thing}"}
    return Item(f"{known} {own}", f"{colour} {thing}", SOURCE, extra=secret)
