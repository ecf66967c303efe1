"""Environments of PettingZoo, such as `pettingzoo/classic/tictactoe_v3`, or yours, as `pettingzoo/my_module:make_env`.

Options are the arguments of the environment, and three options of this hub: `actions`, the names of the actions of
Discrete spaces; `describe`, the `my_module:function` that turns an observation and its agent into the text for the
player; and `illegal_reward`. An action outside of the action space ends the episode for all players, as with the
library's TerminateIllegalWrapper. The player that chose this action gets the illegal value of such a wrapper if the
environment has one, else `illegal_reward` (default -1). An action that only the mask excludes is passed to the
environment.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, cast

import numpy as np

from verl_mas.config.registry import Extra, nearest
from verl_mas.config.user_code import load_module
from verl_mas.environment.worlds.world import Content, Observation, Setup, View, World, register_world
from verl_mas.errors import ConfigError, ForeignError, foreign

if TYPE_CHECKING:
    from pettingzoo import AECEnv, ParallelEnv

zoo = Extra("pettingzoo", "pettingzoo")
OWN = {"actions", "describe", "illegal_reward"}
NUMBERS = 2000  # maximum number of values in an observation
TRIED = 20  # steps of an episode in which copies are compared with the original
CHANCE = (np.random.Generator, np.random.RandomState, random.Random)


class Turns:
    """An AEC environment. Terminated or truncated agents step with the action None, as the library requires."""

    def __init__(self, env: AECEnv):
        self.env = env

    def start(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self._remove_dead()

    def acting(self) -> list[str]:
        return [self.env.agent_selection] if self.env.agents else []

    def seen(self, agent: str) -> tuple[object, Mapping[str, object]]:
        return self.env.observe(agent), self.env.infos.get(agent, {})

    def step(self, actions: Mapping[str, object]) -> dict[str, float]:
        self.env.step(actions[self.env.agent_selection])
        earned = dict(self.env.rewards)
        self._remove_dead()
        return earned

    def _remove_dead(self) -> None:
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)


class AtOnce:
    """A parallel environment, in which all agents act at once."""

    def __init__(self, env: ParallelEnv):
        self.env = env

    def start(self, seed: int) -> None:
        self._observations, self._infos = self.env.reset(seed=seed)

    def acting(self) -> list[str]:
        return list(self.env.agents)

    def seen(self, agent: str) -> tuple[object, Mapping[str, object]]:
        return self._observations[agent], self._infos.get(agent, {})

    def step(self, actions: Mapping[str, object]) -> dict[str, float]:
        self._observations, earned, _, _, self._infos = self.env.step(actions)
        return dict(earned)


@register_world("pettingzoo")
class PettingZoo(World):
    @classmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        return list(actions_of(*key(setup)))

    @classmethod
    def fixed(cls, setup: Setup) -> str | None:
        return difference(*key(setup))

    def start(self) -> View:
        self.game = opened(self.setup)
        self.game.start(self.setup.seed)
        self.rewards = dict.fromkeys(self.players(self.setup), 0.0)
        self.illegal: Counter[str] = Counter()
        self.chance: list[object] = []
        return self._view(self.game.acting())

    def step(self, actions: Mapping[str, str | None]) -> View:
        chosen = {player: self._chosen(player, action) for player, action in actions.items()}
        for player, action in actions.items():
            legal = self.seen[player].legal
            self.illegal[player] += chosen[player] is None or (legal is not None and action not in legal)
        if refused := [player for player, action in chosen.items() if action is None]:
            earned, acting = dict.fromkeys(refused, self._illegal_reward()), list[str]()
        else:
            earned = self.game.step({self.agents[player]: action for player, action in chosen.items()})
            acting = self.game.acting()
        for agent, reward in earned.items():
            player = player_of(agent)
            self.rewards[player] = self.rewards.get(player, 0.0) + float(reward)
        return self._view(acting)

    def observed(self, player: str) -> Observation:
        return self.seen[player]

    def copy(self) -> PettingZoo:
        memo: dict[int, object] = {}
        # Copy each layer by hand. Most environments inherit from EzPickle, so a deepcopy would construct a new one from
        # the same arguments, without the state.
        for env in layers(self.game.env):
            memo[id(env)] = object.__new__(type(env))
        for env in layers(self.game.env):
            vars(memo[id(env)]).update(copy.deepcopy(vars(env), memo))
        twin = copy.deepcopy(self, memo)
        twin.chance = [part for part in memo.values() if isinstance(part, CHANCE)]
        return twin

    def reseed(self, seed: int) -> None:
        """Reseed later random events. Events that were sampled at the start, such as a shuffled deck, do not change."""
        for number, chance in enumerate(self.chance, seed):
            if isinstance(chance, np.random.Generator):
                chance.bit_generator.state = type(chance.bit_generator)(number).state
            elif isinstance(chance, np.random.RandomState | random.Random):
                chance.seed(number % 2**32)

    def close(self) -> None:
        self.game.env.close()

    def _view(self, acting: Sequence[str]) -> View:
        self.agents = {player_of(agent): agent for agent in acting}
        self.seen = {player: self._seen(player, agent) for player, agent in self.agents.items()}
        board = str(self.game.env.render()) if self.setup.options.get("render_mode") == "ansi" else ""
        return View(self.seen, dict(self.rewards), dict(self.illegal), board=board)

    def _seen(self, player: str, agent: str) -> Observation:
        observation, info = self.game.seen(agent)
        given = observation if isinstance(observation, Mapping) else {}
        mask = given.get("action_mask", info.get("action_mask"))
        legal = list(actions_of(*key(self.setup)).get(player, ()))
        if mask is not None:
            legal = [legal[number] for number in np.flatnonzero(mask)]
        return Observation(content_of(observation, agent, self.setup), legal=legal or None)

    def _chosen(self, player: str, action: str | None) -> object:
        """Return the element of the action space that an action names; None if there is no such element."""
        space = self.game.env.action_space(self.agents[player])
        choice = actions_of(*key(self.setup))[player].get(action or "", action)
        return choice if space.contains(choice) else None

    def _illegal_reward(self) -> float:
        own = [vars(env)["_illegal_value"] for env in layers(self.game.env) if "_illegal_value" in vars(env)]
        return float([*own, self.setup.options.get("illegal_reward", -1)][0])


def key(setup: Setup) -> tuple[str, str]:
    return setup.name, json.dumps(dict(setup.options), sort_keys=True)


@cache
def actions_of(name: str, options: str) -> Mapping[str, Mapping[str, int]]:
    """Return the actions of every player, by name. A player whose action space is Text has an empty mapping."""
    setup = Setup(name, options=json.loads(options))
    env = opened(setup).env
    agents = getattr(env, "possible_agents", [])
    found = {player_of(agent): named(env.action_space(agent), setup) for agent in agents}
    env.close()
    if found and len(found) == len(agents):
        return found
    rule = "possible_agents lists the players under different names"
    raise ConfigError(f"pettingzoo/{name}: possible_agents={agents}", rule=rule, fix="list them there")


def named(space: object, setup: Setup) -> Mapping[str, int]:
    from gymnasium import spaces

    if isinstance(space, spaces.Text):
        return {}
    if not isinstance(space, spaces.Discrete):
        fix = "give the environment a wrapper with actions that are"
        raise ConfigError(f"pettingzoo/{setup.name}: actions {space}", rule="they are Discrete, or Text", fix=fix)
    numbers = range(int(space.start), int(space.start + space.n))
    names = [str(name) for name in cast("Sequence[object]", setup.options.get("actions", numbers))]
    if len({name.casefold() for name in names}) < len(names) or len(names) != len(numbers):
        value, rule = f"mas.workflow.args.options.actions={names}", f"each of {len(numbers)} actions has its own name"
        raise ConfigError(value, rule=rule, fix=f"give {len(numbers)} names")
    return dict(zip(names, numbers, strict=True))


@cache
def difference(name: str, options: str) -> str | None:
    """Return the reason why copies are not exact; None if they are exact in each of the first steps of an episode."""
    world, rng = PettingZoo(Setup(name, options=json.loads(options))), random.Random(0)
    view = world.start()
    try:
        for _ in range(TRIED):
            actions = {player: rng.choice(seen.legal or ["a"]) for player, seen in view.observations.items()}
            if not actions:
                break
            with foreign():
                ahead = world.copy().step(actions)
                view = world.step(actions)
            if ahead != view:
                return f"a copy of pettingzoo/{name} takes another step than the original"
    except ForeignError as failed:
        return f"pettingzoo/{name} has no copies: {failed}"
    return None


def opened(setup: Setup) -> Turns | AtOnce:
    zoo.require()
    name = setup.name
    # Warnings about illegal moves are not needed, because metrics count these moves.
    logging.getLogger("pettingzoo.utils.env_logger").setLevel(logging.ERROR)
    options = {option: value for option, value in setup.options.items() if option not in OWN}
    make = function(name, "mas.workflow.args.world") if ":" in name else registered(name)
    try:
        env = make(**options)
    except (TypeError, ImportError, import_module("pettingzoo.env_registry.exceptions").FailedToImport) as error:
        rule, fix = (
            "its options are those of the environment, and its packages are installed",
            "correct or install them",
        )
        raise ConfigError(f"pettingzoo/{name} with {options}: {error}", rule=rule, fix=fix) from error
    if isinstance(env, zoo.AECEnv):
        return Turns(env)
    if isinstance(env, zoo.ParallelEnv):
        return AtOnce(env)
    rule = "it is an AECEnv or a ParallelEnv of PettingZoo"
    raise ConfigError(f"pettingzoo/{name} is a {type(env).__name__}", rule=rule, fix="return one of these")


def registered(name: str) -> Callable[..., object]:
    errors = import_module("pettingzoo.env_registry.exceptions")
    for kind in ("parallel", "aec"):
        with suppress(errors.PettingZooRegistryError):
            return partial(zoo.make, kind, zoo.spec(kind, name))
    rule = "it is registered in PettingZoo, or names a function: my_module:make_env"
    fix = nearest(name, [*zoo.aec_registry, *(set(zoo.parallel_registry) - set(zoo.aec_registry))])
    raise ConfigError(f"mas.workflow.args.world=pettingzoo/{name}", rule=rule, fix=fix)


def function(path: str, setting: str) -> Callable[..., object]:
    where, _, name = path.rpartition(":")
    found = getattr(load_module(where, setting), name, None)
    if not callable(found):
        raise ConfigError(f"{setting}: {path}", rule="it names a function of a module", fix=f"define {name} there")
    return cast("Callable[..., object]", found)


def layers(env: object) -> Iterator[AECEnv | ParallelEnv]:
    """Yield an environment and its wrappers, from the outermost to the innermost."""
    while hasattr(env, "possible_agents"):
        yield env
        env = vars(env).get("env", vars(env).get("aec_env"))


def player_of(agent: object) -> str:
    """Convert the name of an agent of PettingZoo to a name that is valid for an agent of a team."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(agent))
    return name if name[:1].isalpha() else f"agent_{name}"


def content_of(observation: object, agent: str, setup: Setup) -> Content:
    """Convert an observation to content: texts and pictures as they are, arrays as rows of numbers."""
    if describe := setup.options.get("describe"):
        return cast("Content", function(str(describe), "mas.workflow.args.options.describe")(observation, agent))
    if isinstance(observation, Mapping):
        observation = observation.get("text", observation.get("observation", observation))
    if isinstance(observation, str):
        return observation
    who = f"You are {player_of(agent)}."
    if isinstance(observation, np.ndarray) and observation.dtype == np.uint8 and observation.shape[2:] == (3,):
        from PIL import Image

        return [{"type": "image", "image": Image.fromarray(observation)}, {"type": "text", "text": who}]
    written = list(rows(observation, setup.name))
    return " ".join(written) if setup.compact else "\n".join([who, *written])


def rows(observation: object, world: str) -> Iterator[str]:
    if isinstance(observation, Mapping):
        for name, value in observation.items():
            yield from (f"{name}:", *rows(value, world))
        return
    array = np.asarray(observation)
    if array.dtype.kind not in "biuf" or array.size > NUMBERS:
        value = f"pettingzoo/{world}: an observation of {array.size} values of type {array.dtype}"
        fix = "set mas.workflow.args.options.describe=my_module:function, or give the environment a wrapper"
        raise ConfigError(value, rule=f"it is a text, a picture, or at most {NUMBERS} numbers", fix=fix)
    if array.ndim == 3 and array.dtype.kind != "f" and (array >= 0).all() and (array.sum(-1) <= 1).all():
        # Each cell is set in at most one plane, so write it as the number of this plane, from 1, or as 0 for no plane.
        array = array @ np.arange(1, array.shape[-1] + 1)
    for row in array.reshape(-1, array.shape[-1] if array.ndim else 1).tolist():
        yield " ".join(f"{number:.4g}" for number in row)
