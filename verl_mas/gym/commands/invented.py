"""The data set `invented`."""

from __future__ import annotations

import argparse

from verl_mas.data.dataset import DATA_SETS, DataSet, Loader
from verl_mas.data.items import Item
from verl_mas.data.prepare import Prepared
from verl_mas.gym.generated import add_arguments, checked, teach
from verl_mas.gym.invented import InventedWorld
from verl_mas.gym.warmup.search import lessons
from verl_mas.gym.warmup.train import WarmUp
from verl_mas.retrieval.corpus import write_corpus

# A search team must learn to copy names from passages.
TAUGHT = WarmUp(steps=1_600, batch=64, learning_rate=4e-3, lessons=30_000, vocabulary=2_048, prompts=0.3)


@DATA_SETS.register("invented")
class Invented(DataSet):
    """A synthetic corpus with made-up names, and multi-hop questions about it."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--entities", type=int, default=5_000)
        parser.add_argument("--hops", type=int, nargs="+", default=[2, 3])
        add_arguments(parser, train=4_000, test=200)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        taught = checked(options, TAUGHT)
        world = InventedWorld(options.entities, options.seed)

        def items(split: str, count: int) -> list[Item]:
            questions = world.questions(count, hops=tuple(options.hops), split=split)
            return [Item(question.text, [question.answer], f"invented_{question.hops}_hops") for question in questions]

        train, test = items("train", options.train_rows), items("test", options.test_rows)
        write_corpus(options.out, world.passages)
        if options.noise is not None:
            teach(options, lessons(world, options.hops, noise=options.noise, seed=options.seed), taught)
        made = {"invented": {"entities": options.entities, "seed": options.seed, "hops": options.hops}}
        return Prepared(train, test, test, made)
