"""Tasks of reasoning-gym: an episode is one question, whose answer the task's own verifier scores from 0 to 1."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from verl_mas.config.registry import Extra, nearest
from verl_mas.environment.worlds.world import Observation, Setup, View, World, register_world
from verl_mas.errors import ConfigError, SessionFault, failures
from verl_mas.verl_.types import Untyped
from verl_mas.workflow import Malformed
from verl_mas.workflow.codecs import Boxed

gym = Extra("reasoning_gym", "reasoning-gym")
SET = 64  # some tasks plan the whole data set when it is created, so items come in sets of a fixed size
PLAYER = "solver"


@dataclass(frozen=True)
class Item:
    entry: Untyped  # a question with its answer
    items: Untyped

    @property
    def prompt(self) -> str:
        return str(self.entry["question"]).strip()

    def score(self, answer: str | Malformed) -> dict[str, float]:
        """Score an answer from 0 to 1. `acc` is 1 for a complete solution. An answer for which the verifier raises is
        `unchecked`."""
        scores = dict.fromkeys(("score", "acc", "malformed", "unchecked"), 0.0)
        if isinstance(answer, Malformed):
            return scores | {"malformed": 1.0}
        try:
            with failures():
                score = float(self.items.score_answer(answer, self.entry))
        except SessionFault:
            return scores | {"unchecked": 1.0}
        return scores | {"score": score, "acc": float(score >= 1.0)}


@lru_cache(maxsize=4096)
def item(task: str, settings: str, number: int) -> Item:
    """Get an item, cached for the sessions of a task, since slow tasks take hundreds of milliseconds per item.

    Most tasks seed an item with the sum of the set's seed and the item's index in the set. So the seed of a set is the
    number of its first item, and items of different sets have different seeds.
    """
    items = _items(task, settings, number - number % SET)
    return Item(items[number % SET], items)


@lru_cache(maxsize=64)
def _items(task: str, settings: str, seed: int) -> Untyped:
    """One set of the task's items, each generated on access."""
    gym.require()
    known = sorted(gym.factory.DATASETS)
    if task not in known:
        raise ConfigError(f"task {task!r}", rule="it is a task of reasoning-gym", fix=nearest(task, known))
    try:
        return gym.create_dataset(task, seed=seed, size=SET, **json.loads(settings))
    except (TypeError, AssertionError, ValueError) as error:
        fix = f"use settings of {gym.factory.DATASETS[task][1].__name__}, in its ranges"
        raise ConfigError(f"{task} with {settings}", rule=f"reasoning-gym: {error}", fix=fix) from error


@register_world("reasoning_gym")
class ReasoningGym(World):
    """A question of reasoning-gym. Options are settings of the task."""

    @classmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        return (PLAYER,)

    @classmethod
    def check(cls, setup: Setup) -> None:
        cls(setup).start()

    def start(self) -> View:
        settings = json.dumps(dict(self.setup.options), sort_keys=True)
        self.item = item(self.setup.name, settings, self.setup.seed)
        seen = Observation(self.item.prompt, form=None if self.setup.compact else Boxed().prompt())
        return View({PLAYER: seen}, {PLAYER: 0.0}, board=self.item.prompt)

    def step(self, actions: Mapping[str, str | None]) -> View:
        text = actions[PLAYER] or ""
        scores = self.item.score(text if self.setup.compact else Boxed().parse(text))
        return View({}, {PLAYER: scores["score"]}, {PLAYER: int(scores["malformed"])}, scores, board=text)

    def copy(self) -> World:
        return copy.copy(self)
