"""The teams of `long_list` with lists of words for SmolLM2. The question is which word is a colour."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.evidence.long_list import Arms, FixedList, LongList, Question, Scrolls
from verl_mas.config.hydra.recipe.smollm2.words import COLOURS, THINGS

NONE = "none"


def draw(length: int, rng: random.Random) -> Sequence[str]:
    """Draw a list of things with one colour among them."""
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
