"""Commit rules, which choose one of K candidates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_mas.config.registry import Registry

# (scores, mas.branch.temperature, random numbers of the session) -> the index of the chosen candidate
ChooseCandidate = Callable[[Sequence[float], float, random.Random], int]


@dataclass(frozen=True)
class CommitRule:
    choose: ChooseCandidate
    needs_scores: bool = True  # False: the rule works without rewards


COMMIT_RULES: Registry[CommitRule] = Registry("commit rule", group="verl_mas.commit_rules")


def register_commit_rule(name: str, *, needs_scores: bool = True) -> Callable[[ChooseCandidate], ChooseCandidate]:
    """Register a function of (scores, temperature, rng) that returns the index of the candidate to commit."""

    def decorate(choose: ChooseCandidate) -> ChooseCandidate:
        COMMIT_RULES.register(name)(CommitRule(choose, needs_scores))
        return choose

    return decorate


@register_commit_rule("greedy")
def greedy(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Choose the candidate with the best score. If several candidates have the best score, choose the first."""
    return max(range(len(scores)), key=lambda index: scores[index])


@register_commit_rule("softmax")
def softmax(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Choose at random with weights exp(score / mas.branch.temperature), so better candidates are chosen more often."""
    best = max(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    return rng.choices(range(len(scores)), weights)[0]


@register_commit_rule("uniform", needs_scores=False)
def uniform(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Choose at random with equal probabilities."""
    return rng.randrange(len(scores))


@register_commit_rule("first", needs_scores=False)
def first(scores: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Choose the first candidate, whatever its score."""
    return 0
