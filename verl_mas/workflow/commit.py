"""Which of K candidates the session goes on with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from verl_mas.registry import Registry

Choose = Callable[[Sequence[float], float, random.Random], int]
COMMIT_RULES: Registry[Choose] = Registry("commit rule")
NEEDS_NO_SCORE = ("first", "uniform")


@COMMIT_RULES.register("greedy")
def greedy(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    """The best; the first of equals."""
    return max(range(len(scores)), key=lambda place: scores[place])


@COMMIT_RULES.register("softmax")
def softmax(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    best = max(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    return rng.choices(range(len(scores)), weights)[0]


@COMMIT_RULES.register("uniform")
def uniform(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    return rng.randrange(len(scores))


@COMMIT_RULES.register("first")
def first(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    return 0
