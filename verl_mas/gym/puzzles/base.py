"""The interface of every puzzle: seeded boards, cheap copies, legal actions, exact distance, text."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, TypeVar

from verl_mas.errors import ConfigError
from verl_mas.registry import Registry
from verl_mas.util.splits import TEST, TRAIN


class Puzzle(ABC):
    """A puzzle in some state. A subclass implements the abstract methods; only `step` changes the state."""

    __slots__ = ()

    name: ClassVar[str]
    # For the prompt: what the drawing means and what an action is.
    rules: ClassVar[str]
    action_help: ClassVar[str]
    action_pattern: ClassVar[re.Pattern[str]]
    # The length of the shortest plan for the generated board.
    initial_distance: int

    @classmethod
    @abstractmethod
    def generate(cls, seed: int, split: str = TRAIN, *args: Any, **size: Any) -> Puzzle:
        """The board of this seed. The layouts of the two splits never overlap."""

    @abstractmethod
    def copy(self) -> Puzzle:
        """An independent copy; what does not change is shared."""

    @abstractmethod
    def legal_actions(self) -> Sequence[str]: ...

    @abstractmethod
    def step(self, action: str) -> bool:
        """Apply an action. An illegal one changes nothing and returns False; `chance` may change a legal one."""

    @abstractmethod
    def distance(self) -> int | None:
        """The length of the shortest solution, without bad luck; None if there is no solution."""

    @abstractmethod
    def value(self) -> float:
        """The value of this state for the team reward: at most 1, and 1 only when solved."""

    @abstractmethod
    def render(self) -> str:
        """The current state drawn as text, for people and language models."""

    @abstractmethod
    def compact(self) -> str:
        """The current state in a few words, ideally one token each, for models of a few hundred thousand parameters."""

    @abstractmethod
    def key(self) -> Hashable:
        """Identifies a state of a board: equal keys, equal states."""

    @property
    def chance(self) -> str:
        """What chance decides when an action is applied, for the prompt; empty in a puzzle without chance."""
        return ""

    def reseed(self, rng: random.Random) -> None:  # noqa: B027  # a puzzle without chance has nothing to draw
        """Draw what chance decides from here on anew. A copy draws what its original would draw."""

    def certain(self) -> Puzzle:
        """A copy in which every action has its intended effect; `distance` is the same."""
        return self.copy()

    @property
    def solved(self) -> bool:
        return self.distance() == 0

    def bounded_distance(self) -> int:
        """`distance`, at most twice the initial distance, which is also the value of a state without a solution."""
        ceiling = 2 * self.initial_distance
        distance = self.distance()
        return ceiling if distance is None else min(distance, ceiling)

    def best_actions(self) -> list[str]:
        """The legal actions that reduce the distance."""
        here = self.distance()
        if not here:
            return []
        best = []
        for action in self.legal_actions():
            after = self.certain()
            after.step(action)
            there = after.distance()
            if there is not None and there < here:
                best.append(action)
        return best


P = TypeVar("P", bound=type[Puzzle])
PUZZLES: Registry[type[Puzzle]] = Registry("puzzle", package="verl_mas.gym.puzzles.kinds", group="verl_mas.puzzles")
LISTED = "verl-mas data puzzle NAME", PUZZLES  # by `verl-mas list puzzles`


def register_puzzle(name: str) -> Callable[[P], P]:
    """Register a puzzle class under the name that dataset rows and `verl-mas data puzzle` use."""
    return PUZZLES.register(name)  # type: ignore[return-value]


def stream(name: str, seed: int, split: str) -> random.Random:
    """The random numbers of one board, the same on every machine."""
    if split not in (TRAIN, TEST):
        raise ConfigError(
            f"split {split!r} is not known", rule="a board is for training or for testing", fix="train, test"
        )
    return random.Random(f"{name}:{split}:{seed}")
