"""The interface of every game: its starts, legal actions, results, what each player observes, and exact values."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, TypeVar

from verl_mas.errors import DataError
from verl_mas.registry import Registry

Player: TypeAlias = Literal[0, 1]


class Game(ABC):
    """A state of a game between player 0 and player 1. It never changes; an action leads to another state. Equal states
    are equal and have one hash."""

    name: ClassVar[str]
    rules: ClassVar[str]
    stake: ClassVar[float] = 1.0  # what a player can lose, and does lose by an illegal action
    dealt: ClassVar[bool] = False  # whether a start is a deal: then all of them are for training and for testing

    @classmethod
    @abstractmethod
    def starts(cls) -> Sequence[str]:
        """Every start by its name: the deals of a card game, the openings of a board game."""

    @classmethod
    @abstractmethod
    def start(cls, name: str) -> Game:
        """The state of a start."""

    @property
    @abstractmethod
    def player(self) -> Player:
        """Whose turn it is, where the game is not over."""

    @abstractmethod
    def actions(self) -> Sequence[str]:
        """The legal actions, each one word; none where the game is over."""

    @abstractmethod
    def after(self, action: str) -> Game:
        """The state after a legal action."""

    @abstractmethod
    def result(self) -> float:
        """What player 0 wins, where the game is over; player 1 wins the negative of it."""

    @abstractmethod
    def view(self) -> str:
        """What the player whose turn it is observes, as text for language models."""

    @abstractmethod
    def compact(self) -> str:
        """`view` in a few words of one token each, for models of a few hundred thousand parameters."""

    @abstractmethod
    def optimal(self) -> Mapping[str, float]:
        """The probability of each action in an equilibrium; only actions that are played."""


Strategy: TypeAlias = Callable[[Game], Mapping[str, float]]
G = TypeVar("G", bound=type[Game])
GAMES: Registry[type[Game]] = Registry("game", package="verl_mas.gym.games.kinds", group="verl_mas.games")
LISTED = "verl-mas data self_play --game NAME", GAMES  # by `verl-mas list games`


def register_game(name: str) -> Callable[[G], G]:
    """Register a game class under the name that tasks use."""
    return GAMES.register(name)  # type: ignore[return-value]


def uniform(game: Game) -> Mapping[str, float]:
    """Every legal action is as probable as any other."""
    actions = game.actions()
    return {action: 1 / len(actions) for action in actions}


# Opponents without an LLM.
STRATEGIES: Mapping[str, Strategy] = {"random": uniform, "optimal": lambda game: game.optimal()}


def draw(strategy: Strategy, game: Game, rng: random.Random) -> str:
    """An action of a strategy."""
    chances = strategy(game)
    return rng.choices(list(chances), list(chances.values()))[0]


def expected(game: Game, players: tuple[Strategy, Strategy]) -> float:
    """What player 0 wins on average from this state, computed exactly."""
    known: dict[Game, float] = {}

    def value(state: Game) -> float:
        if not state.actions():
            return state.result()
        if state not in known:
            chances = players[state.player](state)
            known[state] = sum(chance * value(state.after(action)) for action, chance in chances.items())
        return known[state]

    return value(game)


def task_of(game: str, start: str) -> str:
    """The question of a dataset row: the name of a game and one of its starts."""
    return f"{game} {start}".rstrip()


def start_of(question: str) -> Game:
    """The state that a question names."""
    name, _, start = question.partition(" ")
    kind = GAMES[name]
    if start not in kind.starts():
        rule = f"it is {name} and one of its {len(kind.starts())} starts, such as {kind.starts()[-1]!r}"
        raise DataError(f"the question {question!r}", rule=rule, fix="create the rows with `verl-mas data self_play`")
    return kind.start(start)
