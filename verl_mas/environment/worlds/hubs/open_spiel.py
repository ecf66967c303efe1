"""Games of OpenSpiel, turn-based or simultaneous, also with chance or hidden information.

A player whose action is illegal loses the game. A search of all states of a game finds its openings, its optimal play,
and the exploitability of a policy.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from verl_mas.config.registry import Extra, nearest
from verl_mas.environment.worlds.world import Observation, Script, Setup, View, World, register_world
from verl_mas.errors import ConfigError

if TYPE_CHECKING:
    from pyspiel import Game, State

pyspiel = Extra("pyspiel", "open-spiel")
OPENING = "opening"  # an option of this hub, not of OpenSpiel
TOKENS = re.compile(r"\d+|[A-Za-z]+|\S")
Policy: TypeAlias = Mapping[str, Mapping[int, float]]  # the probability of each action in each information state
Strategy: TypeAlias = "Callable[[State], Mapping[int, float]]"
T = TypeVar("T")
OPENINGS, POSITIONS, HISTORIES, INFORMATION_STATES, LENGTH = 100_000, 100_000, 20_000, 100, 100
ERROR = 5e-4  # largest exploitability that counts as an equilibrium, as a share of the largest possible result


@register_world("open_spiel")
class OpenSpiel(World):
    """A game of OpenSpiel. `options` holds the parameters of the game, and the option `opening`. With `opening=n`, an
    episode begins after one of the openings of up to n moves."""

    @classmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        return [f"player_{number}" for number in range(game_of(setup).num_players())]

    @classmethod
    def fixed(cls, setup: Setup) -> str | None:
        return f"{setup.name} samples its chance itself" if chance_of(game_of(setup)) == "sampled" else None

    @classmethod
    def starts(cls, setup: Setup) -> int | None:
        return None if chance_of(game_of(setup)) else len(openings_of(setup))

    def start(self) -> View:
        self.names, self.rng = self.players(self.setup), random.Random(self.setup.seed)
        self.illegal = dict.fromkeys(self.names, 0)
        self.forfeited: Mapping[str, float] = {}
        self.game = game_of(self.setup)
        if chance_of(self.game) == "sampled":  # states of a game share one generator, so load a separate game
            self.game = load(self.setup.name, encoded(self.setup, rng_seed=self.setup.seed))
        self.state = self.game.new_initial_state()
        found = openings_of(self.setup)
        for action in found[self.setup.seed % len(found)]:
            self.state.apply_action(action)
        return self.view()

    def step(self, actions: Mapping[str, str | None]) -> View:
        chosen = {player: self.legal[player].get(action or "") for player, action in actions.items()}
        if losers := [player for player, action in chosen.items() if action is None]:
            self.forfeit(losers)
        elif self.state.is_simultaneous_node():
            # Every player needs an action, even one without a choice.
            self.state.apply_actions([chosen.get(player, 0) for player in self.names])
        else:
            self.state.apply_action(*chosen.values())
        return self.view()

    def forfeit(self, losers: Sequence[str]) -> None:
        """End the episode with a loss for these players, who get the minimum of the game. In a game that gives all
        players identical rewards, the other players get the minimum, too. In a constant-sum game, the other players
        share the rest of the sum. In any other game, the other players keep their rewards so far."""
        self.illegal = self.illegal | dict.fromkeys(losers, 1)
        least, total = self.game.min_utility(), self.game.utility_sum()
        others = [player for player in self.names if player not in losers]
        rewards = self.earned() | dict.fromkeys(losers, least)
        if self.game.get_type().utility == pyspiel.GameType.Utility.IDENTICAL:
            rewards = dict.fromkeys(self.names, least)
        elif total is not None:
            rewards |= {player: (total - least * len(losers)) / len(others) for player in others}
        self.forfeited = rewards

    def earned(self) -> dict[str, float]:
        return dict(zip(self.names, self.state.returns(), strict=True))

    def view(self) -> View:
        state = self.state
        while state.is_chance_node():
            actions, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(self.rng.choices(actions, chances)[0])
        acting: Sequence[int] = () if self.forfeited or state.is_terminal() else (state.current_player(),)
        if acting and state.is_simultaneous_node():
            acting = [player for player in range(len(self.names)) if state.legal_actions(player)]
        seen = {self.names[player]: observed(state, player, self.setup.compact) for player in acting}
        self.legal = {player: legal for player, (_, legal) in seen.items()}
        observations = {player: observation for player, (observation, _) in seen.items()}
        return View(observations, self.forfeited or self.earned(), self.illegal, board=str(state))

    def copy(self) -> OpenSpiel:
        twin = copy.copy(self)
        twin.state, twin.rng = self.state.clone(), copy.copy(self.rng)
        return twin

    def reseed(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def scripted(self, script: Script, player: str, rng: random.Random) -> str:
        names = {action: name for name, action in self.legal[player].items()}
        chances = optimal(str(self.game))(self.state) if script == "optimal" else dict.fromkeys(names, 1.0)
        return names[rng.choices(list(chances), list(chances.values()))[0]]


def observed(state: State, player: int, compact: bool) -> tuple[Observation, dict[str, int]]:
    """Return the observation of a player, and the legal actions by name. A game with perfect information shows the
    current state; another game shows the player's whole information state, if it provides one."""
    kind = state.get_game().get_type()
    open_to_all = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    now = kind.provides_observation_string and (open_to_all or not kind.provides_information_state_string)
    text = state.observation_string(player) if now else state.information_state_string(player)
    legal = named(state, player, compact)
    if compact:
        return Observation(" ".join([str(player), *words(text)]), list(legal)), legal
    return Observation(f"You are player_{player} of the game {kind.long_name}.\n\n{text.strip()}", list(legal)), legal


def named(state: State, player: int, compact: bool) -> dict[str, int]:
    """Map the names of actions to the actions. Numbers replace the names if two names are equal, or if the world is
    compact and a name is not a single word."""
    actions = state.legal_actions(player)
    names = [" ".join(state.action_to_string(player, action).split()).strip(" ,;") for action in actions]
    fit = len({*names}) == len(names) and not (compact and not all(map(str.isalpha, names)))
    return dict(zip(names if fit else map(str, actions), actions, strict=True))


def words(text: str) -> list[str]:
    """Split a text into numbers, words and single characters. A run of at most two different letters, such as the marks
    in a row of a board, is split into its letters."""
    found = TOKENS.findall(text)
    return [part for run in found for part in ([run] if run.isdigit() or len({*run}) > 2 else run)]


def encoded(setup: Setup, **parameters: object) -> str:
    """Format the parameters of the game."""
    given = {name: value for name, value in setup.options.items() if name != OPENING}
    return json.dumps(parameters | given, sort_keys=True)


def load(name: str, parameters: str) -> Game:
    value, kinds = f"open_spiel/{name}", {kind.short_name: kind for kind in pyspiel.registered_games()}
    if name not in kinds:
        raise ConfigError(value, rule="OpenSpiel has a game of that name", fix=nearest(name, list(kinds)))
    if kinds[name].dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise ConfigError(value, rule="a mean-field game has no players", fix="choose another game")
    try:
        return pyspiel.load_game(name, json.loads(parameters))
    except (pyspiel.SpielError, TypeError) as error:
        rule = f"{OPENING}, or a parameter with a value of its type: {kinds[name].parameter_specification}"
        fix = f"OpenSpiel: {str(error).splitlines()[0]}"
        raise ConfigError(f"options of {value}: {parameters}", rule=rule, fix=fix) from error


cached = cache(load)


def game_of(setup: Setup) -> Game:
    return cached(setup.name, encoded(setup))


def openings_of(setup: Setup) -> Sequence[Sequence[int]]:
    return openings(str(game_of(setup)), setup.options.get(OPENING, 0))


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
        policy = solver.tabular_average_policy()  # a copy; `average_policy` would be a view of the solver's state
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
