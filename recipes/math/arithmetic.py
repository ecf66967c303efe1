"""Chains of additions and subtractions, small enough for a tiny model on a laptop."""

import argparse
import random
import re
from collections.abc import Iterator

from verl_mas.cli._arguments import whole
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item
from verl_mas.errors import ConfigError
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Boxed, Request, Task
from verl_mas.workflows.solver_verifier import ReviewVerdict, SolverVerifier

PATIENCE = 5_000  # `chains` fails after this many draws in a row without a new chain


def draw(terms: int, largest: int, rng: random.Random) -> str:
    """Draw a chain such as 3+5-2= whose intermediate results are from 0 to `largest`."""
    total = rng.randint(0, largest)
    text = str(total)
    for _ in range(terms - 1):
        after = rng.randint(0, largest)
        text += f"{after - total:+d}"
        total = after
    # There are no words, because every character is a token for a tiny model.
    return f"{text}="


def signed(chain: str) -> list[int]:
    """Return the numbers of a chain; their sum is its result."""
    return [int(number) for number in re.findall(r"[+-]?\d+", chain)]


def chain_split(chain: str) -> str:
    """Assign one chain in five to the test split. `splits.split_of` is not used, because it would assign other chains
    than in published results."""
    return TEST if random.Random(f"split {chain}").randrange(5) == 0 else TRAIN


def chains(count: int, *, terms: int = 4, largest: int = 9, split: str = TRAIN, seed: int = 0) -> list[Item]:
    """Generate distinct chains. No chain is in both splits."""
    rng = random.Random(f"{split} {seed}")
    items: dict[str, Item] = {}
    repeats = 0
    while repeats < PATIENCE:
        repeats += 1
        chain = draw(terms, largest, rng)
        if chain not in items and chain_split(chain) == split:
            items[chain] = Item(chain, str(sum(signed(chain))), "arithmetic")
            repeats = 0
        if len(items) == count:
            return list(items.values())
    value = f"{count} chains of {terms} numbers up to {largest}"
    rule = f"there are only {len(items)} in {split!r} (train or test)"
    raise ConfigError(value, rule=rule, fix="use fewer rows, more terms or larger numbers")


def lessons(terms: int, largest: int, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly, on training chains only. `noise`: the share of steps whose result is random."""
    rng = random.Random(f"lessons {seed}")
    workflow = SolverVerifier()
    while True:
        chain = draw(terms, largest, rng)
        if chain_split(chain) == TRAIN:
            task = Task([{"role": "user", "content": chain}], ground_truth=str(sum(signed(chain))))
            yield from demonstrate(workflow, task, ChainExpert(chain, largest, noise, rng))


class ChainExpert:
    """Scripted replies: every agent works through the chain. The solver's reply ends with the result, and the
    verifier's reply ends with the verdict."""

    def __init__(self, chain: str, largest: int, noise: float, rng: random.Random):
        self._first, *self._steps = signed(chain)
        self._largest, self._noise, self._rng = largest, noise, rng
        self._proposed = 0

    def __call__(self, request: Request) -> str:
        working, result = self._work()
        if request.agent != "verifier":
            self._proposed = result
            return f"{working} {Boxed().render(str(result))}"
        verdict = ReviewVerdict.APPROVE if result == self._proposed else ReviewVerdict.REJECT
        return f"{working} {ReviewVerdict.render(verdict)}"

    def _work(self) -> tuple[str, int]:
        """Work through the chain: for 7+1-2=, return the text 7+1=8-2=6, and 6. A wrong result is carried into the next
        step."""
        total, working = self._first, str(self._first)
        for step in self._steps:
            total = min(self._largest, max(0, total + step))
            if self._rng.random() < self._noise:
                total = self._rng.randint(0, self._largest)
            working += f"{step:+d}={total}"
        return working, total


@DATA_SETS.register("arithmetic")
class Arithmetic(Generated):
    """Short sums for a tiny model."""

    warm_up = WarmUp(steps=1_300, batch=64, learning_rate=4e-3, lessons=40_000)
    rows = (640, 160)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--terms", type=whole(2), default=3)
        parser.add_argument("--largest", type=whole(1), default=9)

    def generate(self, options: argparse.Namespace) -> Prepared:
        kind = {"terms": options.terms, "largest": options.largest, "seed": options.seed}
        train, test = chains(options.train_rows, split=TRAIN, **kind), chains(options.test_rows, split=TEST, **kind)
        return Prepared(train, test, test, {"arithmetic": kind})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(options.terms, options.largest, noise=options.noise, seed=options.seed)
