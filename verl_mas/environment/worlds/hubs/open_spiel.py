"""Games of OpenSpiel, turn-based or simultaneous, also with chance or hidden information.

A player whose action is illegal loses the game.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from verl_mas.config.registry import Extra, nearest
from verl_mas.environment.worlds.game_tree import chance_of, openings, optimal
from verl_mas.environment.worlds.world import Observation, Script, Setup, View, World, register_world
from verl_mas.errors import ConfigError

if TYPE_CHECKING:
    from pyspiel import Game, State

pyspiel = Extra("pyspiel", "open-spiel")
OPENING = "opening"  # an option of this hub, not of OpenSpiel
TOKENS = re.compile(r"\d+|[A-Za-z]+|\S")


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
        if chance_of(self.game) == "sampled":  # all states of a game share one generator, so load another game
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
