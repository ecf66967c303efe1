"""Keeps the episodes of a session. A host of `hosts.py` runs a stage in a thread or in a process of its own."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from verl_mas.environment.worlds.world import Script, Setup, View, World, find

MOST_REHEARSED = 1000


@dataclass(frozen=True)
class Draw:
    """The action of a player without an LLM: a script, and the seed with which the stage samples the action."""

    script: Script
    seed: str

    def at(self, step: int) -> Draw:
        return replace(self, seed=f"{self.seed} {step}")


class Stage:
    """The episodes of one session by index: the original episode, and the copies in which candidates are continued."""

    def __init__(self) -> None:
        self._episodes: list[World] = []

    def open(self, address: str, setup: Setup) -> tuple[int, View]:
        _, kind, _ = find(address)
        world = kind(setup)
        number = self._add(world)
        return number, checked(world.start(), world, setup)

    def step(
        self, number: int, actions: Mapping[str, str | Draw | None], copy_seed: int | None = None
    ) -> tuple[int, View]:
        """Take a step of an episode. With `copy_seed`, the step is taken in a new copy, which is reseeded first."""
        world = self._episodes[number]
        if copy_seed is not None:
            world = world.copy()
            world.reseed(copy_seed)
            number = self._add(world)
        taken = {
            player: world.scripted(action.script, player, random.Random(action.seed))
            if isinstance(action, Draw)
            else action
            for player, action in actions.items()
        }
        return number, checked(world.step(taken), world, world.setup)

    def close(self) -> None:
        episodes, self._episodes = self._episodes, []
        for world in episodes:
            world.close()

    def _add(self, world: World) -> int:
        self._episodes.append(world)
        return len(self._episodes) - 1


def rehearse(address: str, setup: Setup, scripts: Collection[Script]) -> None:
    """Play an episode with random actions, if the world lists legal actions, and an episode with each script. Errors
    of the world are raised."""
    chance, stage = random.Random(0), Stage()
    for script in (None, *scripts):
        number, view = stage.open(address, setup)
        for step in range(MOST_REHEARSED):
            seen = view.observations
            if not seen or (script is None and not all(one.legal for one in seen.values())):
                break
            actions = {
                player: Draw(script, f"{step} {player}") if script else chance.choice(list(one.legal or ()))
                for player, one in seen.items()
            }
            number, view = stage.step(number, actions)
    stage.close()


def checked(view: View, world: World, setup: Setup) -> View:
    """Check that a view names players of the world, and that its rewards are finite numbers."""
    players, name = set(world.players(setup)), setup.name or type(world).__name__
    if strange := {*view.observations, *view.rewards} - players:
        raise ValueError(f"{name} names the players {sorted(strange)}; it has {sorted(players)}")
    if missing := players - set(view.rewards):
        raise ValueError(f"{name} has no rewards of the players {sorted(missing)}")
    rewards = {player: float(reward) for player, reward in view.rewards.items()}
    if wrong := {player: reward for player, reward in rewards.items() if not abs(reward) < float("inf")}:
        raise ValueError(f"{name} gives rewards that are not finite numbers: {wrong}")
    return replace(view, rewards=rewards)
