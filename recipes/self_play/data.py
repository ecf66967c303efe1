"""Episodes of a world for tiny models, and demonstrations of its rules, so that self-play starts from legal play."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping

from verl_mas.cli._arguments import add_settings, values
from verl_mas.cli.data.world import prepared
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.environment.worlds.world import Setup, find
from verl_mas.errors import DataError
from verl_mas.gym.warmup import Generated, Lesson, WarmUp


def lessons(world: str, options: Mapping[str, object], *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly: actions of random episodes, in the form in which tiny models see them. `noise`:
    the share of actions that may be illegal."""
    _, kind, name = find(world)
    rng = random.Random(f"lessons {world} {seed}")
    known: dict[str, None] = {}
    while True:
        episode = kind(Setup(name, rng.getrandbits(30), options, compact=True))
        view = episode.start()
        while view.observations:
            actions = {}
            for player, seen in view.observations.items():
                if not seen.legal:
                    rule, fix = "lessons are random play, of a world that lists its legal actions", "leave out --noise"
                    raise DataError(f"lessons in {world}", rule=rule, fix=fix)
                known |= dict.fromkeys(seen.legal)
                reply = rng.choice(list(known) if rng.random() < noise else list(seen.legal))
                yield Lesson(player, str(seen.content), reply)
                actions[player] = rng.choice(list(seen.legal))
            view = episode.step(actions)


@DATA_SETS.register("self_play")
class SelfPlayData(Generated):
    """Episodes of a world, as `verl-mas data world` writes them, and a tiny model. Use workflow world, text=compact."""

    warm_up = WarmUp(steps=600, lessons=60_000)
    rows = (1024, 17)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("world", metavar="HUB/NAME", help="such as open_spiel/tic_tac_toe")
        add_settings(parser, "--options", "options of the hub")

    def generate(self, options: argparse.Namespace) -> Prepared:
        return prepared(options.world, settings(options), options)

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(options.world, settings(options), noise=options.noise, seed=options.seed)


def settings(options: argparse.Namespace) -> dict[str, object]:
    return values(options.options, "--options NAME=VALUE")
