"""Base class of puzzles, functions that make a board from its name and seed, and dataset rows that name a board."""

from __future__ import annotations

import functools
import inspect
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import make_dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar, get_type_hints

from verl_mas.config.registry import Registry
from verl_mas.config.values import load_dataclass
from verl_mas.errors import ConfigError, DataError
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow.client import DatasetFields


class Puzzle(ABC):
    """A puzzle in some state. A subclass implements the abstract methods; only `step` changes the state."""

    __slots__ = ()

    name: ClassVar[str]
    # Parts of the prompt: the rules with the meaning of the drawing, and the actions.
    rules: ClassVar[str]
    action_help: ClassVar[str]
    action_pattern: ClassVar[re.Pattern[str]]
    initial_distance: int  # the length of the shortest plan for the generated board

    @classmethod
    @abstractmethod
    def generate(cls, seed: int, split: str = TRAIN, *args: Any, **size: Any) -> Puzzle:
        """Generate the board of this seed. The layouts of the two splits never overlap.

        A subclass declares each size as a keyword parameter with a type and a default. The type may include a range, as
        in `Annotated[int, Range(2, 9)]`.
        """

    @abstractmethod
    def copy(self) -> Puzzle:
        """Return an independent copy, which shares the constant parts."""

    @abstractmethod
    def legal_actions(self) -> Sequence[str]: ...

    @abstractmethod
    def step(self, action: str) -> bool:
        """Apply an action. An illegal action changes nothing, and False is returned. In a puzzle with random events
        (`chance`), a legal action may have another effect than intended."""

    @abstractmethod
    def distance(self) -> int | None:
        """Return the length of the shortest solution if every action has its intended effect; None if there is no
        solution."""

    @abstractmethod
    def value(self) -> float:
        """Return the value of this state for the team reward: at most 1, and 1 only if it is solved."""

    @abstractmethod
    def render(self) -> str:
        """Draw the current state as text, for people and language models."""

    @abstractmethod
    def compact(self) -> str:
        """Describe the current state in a few words, ideally of one token each, for models of a few hundred thousand
        parameters."""

    @property
    def chance(self) -> str:
        """Description of the random events of an action, for the prompt; empty if there are none."""
        return ""

    def reseed(self, rng: random.Random) -> None:  # noqa: B027  # a puzzle without chance has nothing to draw
        """Draw later random events from `rng`. A copy that is not reseeded has the same events as its original."""

    def certain(self) -> Puzzle:
        """Return a copy in which every action has its intended effect; its `distance` is the same."""
        return self.copy()

    @property
    def solved(self) -> bool:
        return self.distance() == 0

    def bounded_distance(self) -> int:
        """Return `distance`, capped at twice the initial distance; a state without a solution has this maximum."""
        ceiling = 2 * self.initial_distance
        distance = self.distance()
        return ceiling if distance is None else min(distance, ceiling)

    def best_actions(self) -> list[str]:
        """Return the legal actions that reduce the distance."""
        here = self.distance()
        if not here:
            return []
        best = []
        for action in self.legal_actions():
            after = self.certain()
            after.step(action)
            if (there := after.distance()) is not None and there < here:
                best.append(action)
        return best


P = TypeVar("P", bound=type[Puzzle])
PUZZLES: Registry[type[Puzzle]] = Registry("puzzle", package="verl_mas.gym.puzzles.kinds", group="verl_mas.puzzles")
LISTED = "verl-mas data puzzle NAME", PUZZLES  # listed by `verl-mas list puzzles`


def register_puzzle(name: str) -> Callable[[P], P]:
    """Register a puzzle class under the name that dataset rows and `verl-mas data puzzle` use."""
    return PUZZLES.register(name)  # type: ignore[return-value]


def stream(name: str, seed: int, split: str) -> random.Random:
    """Return the random generator of one board, which is the same on every machine."""
    if split not in (TRAIN, TEST):
        rule = "a board is for training or for testing"
        raise ConfigError(f"split {split!r} is not known", rule=rule, fix="train, test")
    return random.Random(f"{name}:{split}:{seed}")


PUZZLE, SEED, SPLIT, SIZE = "puzzle", "seed", "split", "size"
# Arguments of a puzzle's `generate`, by name.
Size: TypeAlias = Mapping[str, object]


def board(name: str, seed: int, split: str, size: Size) -> Puzzle:
    """Generate the puzzle `name` from its seed; `size` holds the arguments of its `generate`."""
    kind = PUZZLES[name]
    return kind.generate(seed, split, **_checked(kind, size))


def _checked(kind: type[Puzzle], size: Size) -> dict[str, object]:
    """Check and complete the arguments of `generate`, by the names, types, ranges and defaults in its signature."""
    # pandas turns integers into floats in columns with missing values.
    whole = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in size.items()
    }
    return dict(vars(load_dataclass(_settings(kind), whole, kind.name)))


@functools.cache
def _settings(kind: type[Puzzle]) -> type:
    """Make a dataclass of the arguments of `generate`."""
    hints = get_type_hints(kind.generate, include_extras=True)
    parameters = inspect.signature(kind.generate).parameters.values()
    chosen = [(item.name, hints[item.name], item.default) for item in parameters if item.name not in ("seed", "split")]
    return make_dataclass(f"{kind.__name__}.generate", chosen)


def row(name: str, seed: int, split: str, size: Size) -> dict[str, object]:
    """Make a dataset row for verl. It stores the seed and the full size, from which the board is generated."""
    full_size = {key: value for key, value in _checked(PUZZLES[name], size).items() if value is not None}
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": f"{name} {split} {seed}"}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": seed, PUZZLE: name, SEED: seed, SPLIT: split, SIZE: full_size},
    }


def board_of(extra_info: DatasetFields) -> Puzzle:
    """Generate the board that a row names."""
    for key in (PUZZLE, SEED, SPLIT, SIZE):
        if key not in extra_info:
            value = f"extra_info has no {key!r}"
            fix = "create them with verl_mas.gym.puzzles.puzzle.row or `verl-mas data puzzle`"
            raise DataError(value, rule="a puzzle workflow needs rows that name a board", fix=fix)
    # Parquet adds the keys of other rows in the file, with the value None.
    size = {key: value for key, value in extra_info[SIZE].items() if value is not None}
    return board(extra_info[PUZZLE], int(extra_info[SEED]), extra_info[SPLIT], size)
