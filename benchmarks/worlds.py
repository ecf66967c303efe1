"""Measure a step of a world in a session: through a host's thread, through a host's process, and without a host.

    python -m benchmarks.worlds open_spiel/tic_tac_toe textarena/TicTacToe-v0 --episodes 200

Players draw among the legal actions or, if the world lists none, all answer `--action`. All three ways play the same
episodes and must get the same rewards. A row has the median microseconds of a step for each way and, in parentheses,
the difference from the step without a host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from statistics import median

from verl_mas.environment.worlds.hosts import Kind, Pool, Stage
from verl_mas.environment.worlds.world import Setup, View, find

Actions = Mapping[str, str]


def actions_of(view: View, action: str | None, rng: random.Random) -> Actions:
    return {
        player: action if seen.legal is None else rng.choice(list(seen.legal))
        for player, seen in view.observations.items()
    }


def own(world: str, setup: Setup, action: str | None, spent: list[float]) -> Mapping[str, float]:
    """Play an episode in this thread and append the seconds of each step to `spent`."""
    stage, rng = Stage(), random.Random(setup.seed)
    number, view = stage.open(world, setup)
    while view.observations:
        actions = actions_of(view, action, rng)
        began = time.perf_counter()
        number, view = stage.step(number, actions)
        spent.append(time.perf_counter() - began)
    stage.close()
    return view.rewards


async def hosted(
    pool: Pool, world: str, kind: Kind, setup: Setup, action: str | None, spent: list[float]
) -> Mapping[str, float]:
    rng = random.Random(setup.seed)
    async with pool.stage(world, kind, 60) as stages:
        place = await stages.open(setup)
        while place.view.observations:
            actions = actions_of(place.view, action, rng)
            began = time.perf_counter()
            place = await stages.step(place, actions)
            spent.append(time.perf_counter() - began)
    return place.view.rewards


async def measured(world: str, episodes: int, action: str | None, options: dict[str, object]) -> str:
    world, _, name = find(world)
    kinds: Sequence[Kind] = ("thread", "process")
    pool, spent = Pool(), {kind: list[float]() for kind in ("own", *kinds)}
    for seed in range(episodes):
        setup = Setup(name, seed, options)
        # Play each episode in all ways before the next episode, so that a busy machine slows all ways alike.
        rewards = [own(world, setup, action, spent["own"])]
        for kind in kinds:
            rewards.append(await hosted(pool, world, kind, setup, action, spent[kind]))
        if rewards[1:] != rewards[:-1]:
            raise SystemExit(f"{world}, seed {seed}: {rewards}")
    steps = {kind: median(times) * 1e6 for kind, times in spent.items()}
    more = " ".join(f"{kind} {steps[kind]:8.1f} (+{steps[kind] - steps['own']:6.1f})" for kind in kinds)
    return f"{world:40} {len(spent['own']):7} steps: own {steps['own']:8.1f} {more}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="+")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--action", help="of worlds that list no legal actions")
    parser.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    for world in given.worlds:
        print(asyncio.run(measured(world, given.episodes, given.action, given.options)), flush=True)


if __name__ == "__main__":
    main()
