"""The list of `long_list` for SmolLM2: which of the words is a colour."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence

from benchmarks.evidence.long_list import Arms, FixedList, LongList, LongLists, Question, Scrolls
from verl_mas.data.dataset import DATA_SETS, Loader, Prepared
from verl_mas.gym.secret_words import COLOURS, THINGS
from verl_mas.gym.smollm2 import write_model
from verl_mas.gym.warmup import Lesson, WarmUp

NONE = "none"


def draw(length: int, rng: random.Random) -> Sequence[str]:
    """Things with one colour among them."""
    return rng.sample([rng.choice(COLOURS), *rng.sample(THINGS, length - 1)], length)


def colour_of(words: Sequence[str]) -> str:
    return next((word for word in words if word in COLOURS), NONE)


def guess(words: Sequence[str], rng: random.Random) -> str:
    return rng.choice([*COLOURS, NONE])


COLOUR = Question(4, draw, colour_of, guess, (*COLOURS, NONE))


class WordList(LongList):
    question = COLOUR


class FixedWordList(FixedList):
    question = COLOUR


class WordScrolls(Scrolls):
    question = COLOUR


class WordArms(Arms):
    teams = {"learnt": WordList, "fixed": FixedWordList, "scrolls": WordScrolls}  # noqa: RUF012


@DATA_SETS.register("word_list")
class WordLists(LongLists):
    """As `long_list`, with a model that is SmolLM2, further trained on demonstrations: the same one for every seed."""

    warm_up = WarmUp(steps=120, batch=16, lessons=2_000, learning_rate=1e-4)
    question, arms = COLOUR, WordArms

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        pretrained = options.out / "smollm2"
        write_model(pretrained)
        options.warm_up = [*options.warm_up, f"start={pretrained}", "seed=0"]
        return super().prepare(options, load)

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return super().lessons(argparse.Namespace(**{**vars(options), "seed": 0}))
