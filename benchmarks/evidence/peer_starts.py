"""Make the start of the peers: chains of sums, and tiny models that solve most chains.

Each model is blind to some of the chains. There it mostly answers the result plus one, so its samples share this error.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from verl_mas.cli._arguments import values
from verl_mas.config.hydra.recipe.math.arithmetic import Arithmetic, chain_split, draw, signed
from verl_mas.data.dataset import DATA_SETS, Loader, Prepared
from verl_mas.gym.warmup import Lesson, WarmUp, bare, log_loss, warm_up
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Boxed, Task
from verl_mas.workflows._graded import GradedTask
from verl_mas.workflows.solver_verifier import ReviewVerdict, judge, solve

# Model -> the first numbers of the chains that it is blind to, and the share of their demonstrations with the error.
BLIND = {"low": (range(5), 0.5), "high": (range(5, 10), 0.5), "all": (range(10), 0.65)}


def reply(chain: str, model: str, noise: float, rng: random.Random) -> str:
    working, total = work(chain, model, noise, rng)
    return f"{working} {Boxed().render(str(total))}"


def review(chain: str, model: str, proposal: str, noise: float, rng: random.Random) -> str:
    """Write a review, which approves the proposal if its result equals the result of the model's own work."""
    working, total = work(chain, model, noise, rng)
    same = proposal.endswith(Boxed().render(str(total)))
    return f"{working} {ReviewVerdict.render(ReviewVerdict.APPROVE if same else ReviewVerdict.REJECT)}"


def work(chain: str, model: str, noise: float, rng: random.Random) -> tuple[str, int]:
    """Work through the chain as the model does. Return the working and the result.

    `noise` is the share of random results. In chains that the model is blind to, this share is 0.1.
    """
    total, *steps = signed(chain)
    working, (blind, plus_one) = str(total), BLIND[model]
    sees = total not in blind
    for step in steps[:-1]:
        total += step
        working += f"{step:+d}={total}"
    total += steps[-1]
    chance = rng.random()
    if chance < (noise if sees else 0.1):
        total = rng.randrange(10)
    elif not sees and chance < 0.1 + plus_one:
        total = (total + 1) % 10
    return f"{working}{steps[-1]:+d}={total}", total


@DATA_SETS.register("peer_start")
class PeerStart(Arithmetic):
    """The data of `verl-mas data arithmetic`, with one model for each name in `--models`.

    The first model is in the folder `model`, and each further model is in a subfolder of it.
    """

    warm_up = WarmUp(steps=400, batch=64, learning_rate=4e-3, lessons=20_000)
    of_demonstrations = ("models", "reviews")

    def options(self, parser: argparse.ArgumentParser) -> None:
        super().options(parser)
        parser.add_argument("--models", nargs="+", choices=BLIND, default=[*BLIND])
        parser.add_argument("--reviews", action="store_true", help="half of the demonstrations are reviews")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        prepared = super().prepare(options, load)
        for number, name in enumerate(options.models[1:], 1):
            given = values(options.warm_up, "--warm-up NAME=VALUE")
            config = self.warm_up.changed({"seed": options.seed + 1000 * number} | given)
            warm_up(Path(options.out) / "model" / name, lessons(options, name), config, log_loss)
        return prepared

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(options, options.models[0])


def lessons(options: argparse.Namespace, blind: str) -> Iterator[Lesson]:
    rng = random.Random(f"{blind} {options.seed}")
    while True:
        chain = draw(options.terms, options.largest, rng)
        if chain_split(chain) == TRAIN:
            task = Task([{"role": "user", "content": chain}])
            prompt = bare(solve(GradedTask(task, Boxed(), None, None)))
            yield Lesson("peer", prompt, reply(chain, blind, options.noise, rng))
            if options.reviews:
                proposal = reply(chain, rng.choice(options.models), options.noise, rng)
                yield Lesson("peer", bare(judge(task, proposal)), review(chain, blind, proposal, options.noise, rng))
