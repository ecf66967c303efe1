"""Make starts for worlds that list no actions: rows, and a tiny model that knows little more than an action's form."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Mapping

from benchmarks.evidence.arms import ROOT
from verl_mas.cli._arguments import add_settings, values
from verl_mas.cli.data.verifiers import Tasks
from verl_mas.cli.data.world import prepared
from verl_mas.config.user_code import load_module
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.environment.worlds.hubs.reasoning_gym import item
from verl_mas.environment.worlds.world import Setup, find
from verl_mas.gym.warmup import Generated, Lesson, WarmUp

Options = Mapping[str, object]
TASKSET = "verifiers/"
load_module(str(ROOT / "recipes/folded/pages.py"), "the starts of recipes")


def prisoners(options: Options, noise: float, rng: random.Random) -> Iterator[Lesson]:
    """Yield demonstrations of a player that greets, and then cooperates or defects at random."""
    _, kind, name = find("textarena/IteratedPrisonersDilemma-v0")
    while True:
        episode = kind(Setup(name, rng.getrandbits(30), options, compact=True))
        view = episode.start()
        while view.observations:
            ((player, seen),) = view.observations.items()
            reply = rng.choice(["[Cooperate]", "[Defect]"]) if "finished" in str(seen.content) else "hi"
            yield Lesson(player, str(seen.content), reply)
            view = episode.step({player: reply})


def guesses(options: Options, noise: float, rng: random.Random) -> Iterator[Lesson]:
    """Yield guesses: the middle of the interval if the prompt has it, or any digit if it has a count of guesses."""
    while True:
        low = rng.randrange(10)
        high = rng.randrange(low, 10)
        knows = rng.random() < 0.5
        right = knows and rng.random() >= noise
        guess = (low + high) // 2 if right else rng.randrange(10)
        yield Lesson("player", f"{low} {high}" if knows else str(rng.randrange(1, 6)), str(guess))


def sums(options: Options, noise: float, rng: random.Random) -> Iterator[Lesson]:
    """Yield sums with their answers. `noise` is the share of random answers, as in `words`."""
    settings = json.dumps(dict(options), sort_keys=True)
    while True:
        entry = item("chain_sum", settings, rng.getrandbits(30)).entry
        answer = str(rng.randrange(-9, 19)) if rng.random() < noise else str(entry["answer"])
        yield Lesson("solver", entry["question"].strip(), answer)


def words(options: Options, noise: float, rng: random.Random) -> Iterator[Lesson]:
    letters, length = str(options["letters"]), int(str(options["length"]))
    while True:
        word = rng.choices(letters, k=length)
        reply = rng.choices(letters, k=length) if rng.random() < noise else word[::-1]
        yield Lesson("agent", "".join(word), "".join(reply))


LESSONS: Mapping[str, Callable[[Options, float, random.Random], Iterator[Lesson]]] = {
    "textarena/IteratedPrisonersDilemma-v0": prisoners,
    "openenv/Guessing": guesses,
    "reasoning_gym/chain_sum": sums,
    f"{TASKSET}reverse_word": words,
}


@DATA_SETS.register("world_start")
class WorldStart(Generated):
    """The data set of `verl-mas data self_play`, with the demonstrations of this module."""

    warm_up = WarmUp(steps=300, lessons=20_000)
    rows = (512, 128)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("world", metavar="HUB/NAME", choices=LESSONS)
        add_settings(parser, "--options", "options of the hub")
        parser.add_argument("--folder", help="of the taskset")

    def generate(self, options: argparse.Namespace) -> Prepared:
        if options.world.startswith(TASKSET):
            named = {**vars(options), "taskset": options.world.removeprefix(TASKSET), "python": None}
            return Tasks().prepare(argparse.Namespace(**named), load=None)
        return prepared(options.world, settings(options), options)

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        rng = random.Random(f"{options.world} {options.seed}")
        return LESSONS[options.world](settings(options), options.noise, rng)


def settings(options: argparse.Namespace) -> dict[str, object]:
    return values(options.options, "--options NAME=VALUE")
