"""Searches all states of an OpenSpiel game, for its openings, its optimal play, and the exploitability of a policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from verl_mas.config.registry import Extra
from verl_mas.errors import ConfigError

if TYPE_CHECKING:
    from pyspiel import Game, State

pyspiel = Extra("pyspiel", "open-spiel")
Policy: TypeAlias = Mapping[str, Mapping[int, float]]  # the probability of each action in each information state
Strategy: TypeAlias = "Callable[[State], Mapping[int, float]]"
T = TypeVar("T")
OPENINGS, POSITIONS, HISTORIES, INFORMATION_STATES, LENGTH = 100_000, 100_000, 20_000, 100, 100
ERROR = 5e-4  # largest exploitability that counts as an equilibrium, as a share of the largest possible result


def chance_of(game: Game) -> str:
    """Return the kind of chance in a game. It is empty without chance, "explicit" if chance moves are part of the game
    tree, and "sampled" if the game samples them itself."""
    modes = {pyspiel.GameType.ChanceMode.DETERMINISTIC: "", pyspiel.GameType.ChanceMode.EXPLICIT_STOCHASTIC: "explicit"}
    return modes.get(game.get_type().chance_mode, "sampled")


def in_turns(game: Game) -> bool:
    return bool(game.get_type().dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL)


# Games cannot be keys of a cache, so the functions below take OpenSpiel's name of a game, with its parameters.


@cache
def openings(name: str, longest: object) -> Sequence[Sequence[int]]:
    """List all openings of up to `longest` moves, in an order that mixes their lengths."""
    game, value = pyspiel.load_game(name), f"option opening={longest} of {name}"
    if not isinstance(longest, int) or longest < 0:
        raise ConfigError(value, rule="it is a number of moves, 0 or more", fix="opening=2")
    if not longest:
        return [[]]
    if chance_of(game) or not in_turns(game):
        rule = "only a turn-based game without chance has openings; chance already makes other episodes differ"
        raise ConfigError(value, rule=rule, fix="remove the option")
    found = listed((state.history() for state in states(game, longest)), OPENINGS, value)
    return random.Random(0).sample(found, len(found))


def states(game: Game, longest: int = -1) -> Iterator[State]:
    """Yield every state in which a player or chance acts, after up to `longest` moves; -1 sets no limit."""
    waiting = [(game.new_initial_state(), longest)]
    while waiting:
        state, left = waiting.pop()
        if not state.is_terminal():
            yield state
            waiting += [(state.child(action), left - 1) for action in state.legal_actions() if left]


def listed(found: Iterable[T], limit: int, value: str) -> list[T]:
    first = list(islice(found, limit + 1))
    if len(first) > limit:
        raise ConfigError(value, rule=f"it has at most {limit:,} states", fix="choose a smaller game, or leave it out")
    return first


@cache
def optimal(name: str) -> Strategy:
    """Optimal strategy by minimax, or an equilibrium if the game has hidden information or chance."""
    game, value = pyspiel.load_game(name), f"an optimal player of {name}"
    check_two(game, value, fix="set opponent=self, past or random")
    if game.get_type().information == pyspiel.GameType.Information.PERFECT_INFORMATION and not chance_of(game):
        return minimax(game, value)
    listed(states(game), HISTORIES, value)
    solver = pyspiel.CFRPlusSolver(game)
    while True:
        for _ in range(50):
            solver.evaluate_and_update_policy()
        policy = solver.tabular_average_policy()  # a copy; the solver's other policy is a view of its state
        if pyspiel.exploitability(game, policy) <= ERROR * game.max_utility():
            return lambda state: dict(policy.action_probabilities(state))


def check_two(game: Game, value: str, fix: str) -> None:
    if game.get_type().utility != pyspiel.GameType.Utility.ZERO_SUM or game.num_players() != 2 or not in_turns(game):
        raise ConfigError(value, rule="it is a two-player, turn-based, zero-sum game", fix=fix)


def minimax(game: Game, value: str) -> Strategy:
    known: dict[tuple[int, str], float] = {}  # the result for player 0, by the player to act and the board

    def won(state: State) -> float:
        if state.is_terminal():
            return float(state.returns()[0])
        position = (state.current_player(), str(state))
        if position not in known:
            if len(known) > POSITIONS or game.max_game_length() > LENGTH:
                rule = f"it has at most {POSITIONS:,} states and {LENGTH} moves"
                raise ConfigError(value, rule=rule, fix="choose a smaller game, or opponent=self, past or random")
            results = [won(state.child(action)) for action in state.legal_actions()]
            known[position] = min(results) if position[0] else max(results)
        return known[position]

    def best(state: State) -> Mapping[int, float]:
        sign = -1 if state.current_player() else 1
        results = {action: sign * won(state.child(action)) for action in state.legal_actions()}
        return {action: 1.0 for action, result in results.items() if result == max(results.values())}

    won(game.new_initial_state())
    return best


@cache
def information_states(name: str) -> Mapping[str, State]:
    """Map the text of each information state of a small, turn-based game of two players to one of its states."""
    game, value = pyspiel.load_game(name), f"the exploitability of a policy of {name}"
    check_two(game, value, fix="set mas.workflow.name=world")
    acting = (state for state in listed(states(game), HISTORIES, value) if not state.is_chance_node())
    found = {state.information_state_string(): state for state in acting}
    listed(found, INFORMATION_STATES, value)
    return found


def exploitability(name: str, policy: Policy) -> float:
    """The gain of a best response, as the mean over both players; 0 for an equilibrium."""
    table = {text: list(chances.items()) for text, chances in policy.items()}
    return float(pyspiel.exploitability(pyspiel.load_game(name), table))
