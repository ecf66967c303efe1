"""Games of TextArena, such as `textarena/TicTacToe-v0`, with the library's observations, rules and rewards."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from statistics import fmean

from verl_mas.config.registry import Extra
from verl_mas.environment.worlds.world import Observation, Setup, View, World, register_world
from verl_mas.errors import ConfigError
from verl_mas.verl_.types import Untyped

textarena = Extra("textarena", "textarena")
FORM = "Answer with your action, written as the rules ask."
GAME = -1  # sender of messages from the game itself
OPTIONS = ("num_players", "points", "joint")  # options of this hub; all other options belong to the game
# Exceptions that making an environment can raise, and the fix for each.
FIXES: dict[type[Exception], str] = {
    ImportError: "install the package that it names, on every node of the run",
    LookupError: "python -m nltk.downloader words averaged_perceptron_tagger_eng, on every node of the run",
    SyntaxError: "use Python 3.12, for which some games are written, or another world",
    OSError: "use another world: this one needs files that its package lacks",
    TypeError: "correct mas.workflow.args.options",
}


class Chance(threading.local):
    """Replaces `random` in the library's modules. It draws from the generator of the episode that this thread plays,
    because concurrent episodes that share the generator of the process would not be repeatable."""

    def __init__(self) -> None:
        self.rng = random.Random()

    def __getattr__(self, name: str) -> object:
        return getattr(self.rng if hasattr(self.rng, name) else random, name)


CHANCE = Chance()
STARTS = threading.Lock()  # start one game at a time, because the generator of Sokoban's rooms uses global variables


class Rules:
    """Wraps `set_invalid_move` and `step` of a game's state, the two methods with which all games end a turn."""

    def __init__(self, state: Untyped):
        self.state, self.kind, self.refused = state, type(state), 0
        state.set_invalid_move, state.step = self.refuse, self.step

    def refuse(self, *args: object, **named: object) -> object:
        """Count an invalid action, and apply the game's penalty for it."""
        self.refused += 1
        # Put the reason first. Countdown, Cryptarithm, Slitherlink and ThreeCardMonte pass the reward first.
        args = args if not args or isinstance(args[0], str) else args[::-1]
        return self.kind.set_invalid_move(self.state, *args, **named)

    def step(self, rotate_player: bool | None = None) -> object:
        out = vars(self.state).get("elimination_order", ())
        if rotate_player is not False and len({*out}) == self.state.num_players and not self.state.done:
            # End the game, because PublicGoodsGame and MarketEntryGame would search for the next player forever.
            self.state.set_draw(reason="All players eliminated!")
        return self.kind.step(self.state, *([] if rotate_player is None else [rotate_player]))


@register_world("textarena")
class TextArena(World):
    """A game of TextArena. Options: `num_players`; `points`, a part of the game's state that replaces the result as the
    reward, such as `scores` or `inventory_value.change`; `joint`, with which each player gets the mean of all rewards.
    """

    @classmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        return _players(setup.name, json.dumps(dict(setup.options), sort_keys=True))

    def start(self) -> View:
        self.rng = CHANCE.rng = random.Random(self.setup.seed)
        players = self.players(self.setup)
        self.env = begun(self.setup, len(players))
        self.rules = Rules(self.env.state)
        self.before, self.illegal = points(self.env, self.setup), dict.fromkeys(players, 0)
        return self._view()

    def step(self, actions: Mapping[str, str | None]) -> View:
        ((player, action),) = actions.items()
        CHANCE.rng, refused = self.rng, self.rules.refused
        self.env.step(action=action or "")
        self.illegal[player] += action is None or self.rules.refused > refused
        return self._view()

    def _view(self) -> View:
        state = self.env.state
        seen = {} if state.done else self._seen()
        return View(seen, self._rewards(), dict(self.illegal), board=state.logs[-1][1] if state.logs else "")

    def _seen(self) -> dict[str, Observation]:
        state = self.env.state
        fresh = state.observations[state.current_player_id]
        number, text = self.env.get_observation()
        news = [message for message in fresh if message[0] != number or message[2].name != "PLAYER_ACTION"]
        self.last = next((text for _, text, kind in reversed(news) if kind.name != "PROMPT"), "")
        player, names = f"player_{number}", {GAME: "GAME", **state.role_mapping}
        if self.setup.compact:
            return {player: Observation(f"{player}\n{self.last}")}
        listed = "\n".join(f"[{names.get(sender, sender)}] {text}" for sender, text, _ in news)
        return {player: Observation(text, news=listed, form=FORM)}

    def _rewards(self) -> dict[str, float]:
        state = self.env.state
        if self.before:
            earned = [now - before for now, before in zip(points(self.env, self.setup), self.before, strict=True)]
        else:
            earned = [float(state.rewards[number]) if state.done else 0.0 for number in range(len(self.illegal))]
        if self.setup.options.get("joint"):
            earned = [fmean(earned)] * len(earned)
        return dict(zip(self.illegal, earned, strict=True))

    def observed(self, player: str) -> Observation:
        """Observe the last message, with the legal moves that some games list."""
        return Observation(self.last, legal=re.findall(r"\[.*?\]", self.last.partition("Available Moves:")[2]))

    def copy(self) -> TextArena:
        return copy.deepcopy(self)

    def reseed(self, seed: int) -> None:
        self.rng.seed(seed)


def begun(setup: Setup, players: int) -> Untyped:
    """Start the environment, in its default wrappers."""
    try:
        env = textarena.make(setup.name, **{key: given for key, given in setup.options.items() if key not in OPTIONS})
        for name, module in list(sys.modules.items()):
            if name.startswith("textarena.") and vars(module).get("random") is random:
                vars(module)["random"] = CHANCE
        with STARTS:
            env.reset(num_players=players, seed=setup.seed)
    except tuple(FIXES) as error:
        cause = next((line.strip() for line in str(error).splitlines() if line.strip(" *")), "")
        value = f"textarena/{setup.name}: {type(error).__name__}: {cause}"
        fix = next(fix for kind, fix in FIXES.items() if isinstance(error, kind))
        raise ConfigError(value, rule="the library can make the world, with its options", fix=fix) from error
    return env


def points(env: Untyped, setup: Setup) -> list[float]:
    """Read the values that the option `points` names, by player; empty without the option."""
    named, state = str(setup.options.get("points", "")), env.state.game_state
    if not named:
        return []
    part, _, field = named.partition(".")
    try:
        found = [state[part][number] for number in range(env.state.num_players)]
        return [float(value[field] if field else value) for value in found]
    except (LookupError, TypeError, ValueError) as error:
        value = f"points={named} of textarena/{setup.name}"
        rule = "it names a number of each player in the state of the game"
        raise ConfigError(value, rule=rule, fix=f"choose one of {', '.join(map(str, state))}") from error


@cache
def _players(name: str, options: str) -> Sequence[str]:
    """Return the players. Their number is the option `num_players`, or else the number with which the game is
    registered. If neither is set, it is the smallest number with which the game starts."""
    setup = Setup(name, options=json.loads(options))
    known = textarena.envs.registration.ENV_REGISTRY
    if name not in known:
        rule = f"the world is one of the {len(known)} that textarena {textarena.__version__} registers"
        fix = f"use {' or '.join(get_close_matches(name, known, cutoff=0))}"
        raise ConfigError(f"textarena/{name}", rule=rule, fix=fix)
    asked, causes = setup.options.get("num_players"), []
    registered = [given for key, given in known[name].kwargs.items() if key.endswith("num_players")]
    for number in [asked] if isinstance(asked, int) else registered or range(1, 16):
        try:
            env = begun(setup, number)
        except (AssertionError, ValueError) as error:
            causes.append(str(error))
            continue
        # Some games start even if `number` is less than their number of players, so count the players in the state.
        if len({*env.state.role_mapping} - {GAME}) == number:
            points(env, setup)
            return [f"player_{player}" for player in range(number)]
    value = f"num_players={asked} of textarena/{name}"
    fix = "leave it out: the game begins with the fewest players"
    raise ConfigError(value, rule="; ".join(dict.fromkeys(causes)), fix=fix)
