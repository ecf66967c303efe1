"""Starts of peers: chains of sums, and two tiny models that are each right in most tasks or in half of them.

In its blind half of the tasks, a model mostly writes the result plus one: an error that samples share.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from verl_mas.cli._arguments import values
from verl_mas.data.dataset import DATA_SETS, Loader, Prepared
from verl_mas.gym.arithmetic import Arithmetic, chain_split, draw, signed
from verl_mas.gym.warmup import Lesson, WarmUp, bare, log_loss, warm_up
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Boxed, Task
from verl_mas.workflows._graded import GradedTask
from verl_mas.workflows.solver_verifier import solve

# Of the first number of a chain.
BLIND = {"low": range(5), "high": range(5, 10), "all": range(10), "none": range(0)}
PLUS_ONE = 0.5  # The share of lessons of the blind half with this error
OTHER_SEED = 1000


def reply(chain: str, blind: range, noise: float, rng: random.Random) -> str:
    """Works through the chain. `noise` is the share of random results; a tenth in the blind half."""
    total, *steps = signed(chain)
    working = str(total)
    sees = total not in blind
    for step in steps[:-1]:
        total += step
        working += f"{step:+d}={total}"
    total += steps[-1]
    chance = rng.random()
    if chance < (noise if sees else 0.1):
        total = rng.randrange(10)
    elif not sees and chance < 0.1 + PLUS_ONE:
        total = (total + 1) % 10
    return f"{working}{steps[-1]:+d}={total} {Boxed().render(str(total))}"


@DATA_SETS.register("peer_start")
class PeerStart(Arithmetic):
    """As `verl-mas data arithmetic`, with a second model in model/other."""

    warm_up = WarmUp(steps=800, batch=64, learning_rate=4e-3, lessons=20_000)
    rows = (640, 160)

    def options(self, parser: argparse.ArgumentParser) -> None:
        super().options(parser)
        parser.add_argument("--blind", nargs=2, choices=BLIND, default=["low", "high"], help="of each model")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        prepared = super().prepare(options, load)
        other = argparse.Namespace(**{**vars(options), "seed": options.seed + OTHER_SEED, "blind": options.blind[::-1]})
        config = self.warm_up.changed({"seed": other.seed} | values(options.warm_up, "--warm-up NAME=VALUE"))
        warm_up(Path(options.out) / "model" / "other", self.lessons(other), config, log_loss)
        return prepared

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        rng = random.Random(f"peers {options.seed}")
        while True:
            chain = draw(options.terms, options.largest, rng)
            if chain_split(chain) == TRAIN:
                task = Task([{"role": "user", "content": chain}])
                prompt = bare(solve(GradedTask(task, Boxed(), None, None)))
                yield Lesson("peer", prompt, reply(chain, BLIND[options.blind[0]], options.noise, rng))
