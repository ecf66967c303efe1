"""Chains of additions and subtractions, small enough for a tiny model on a laptop."""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Mapping, Sequence

from verl_mas.config.schema import FreeSettings, WorkflowSpec
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item
from verl_mas.errors import ConfigError
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Boxed, Request, Task
from verl_mas.workflow.base import resolve
from verl_mas.workflows.leader_workers import Delegation, Moves
from verl_mas.workflows.solver_verifier import ReviewVerdict

PATIENCE = 5_000  # repeats in a row after which no new chain is expected


def draw(terms: int, largest: int, rng: random.Random) -> str:
    """A chain such as 3+5-2= with all intermediate results from 0 to `largest`."""
    total = rng.randint(0, largest)
    text = str(total)
    for _ in range(terms - 1):
        after = rng.randint(0, largest)
        text += f"{after - total:+d}"
        total = after
    # No words: every character is a token for a tiny model.
    return f"{text}="


def signed(chain: str) -> list[int]:
    """The numbers of a chain; their sum is its result."""
    return [int(number) for number in re.findall(r"[+-]?\d+", chain)]


def chain_split(chain: str) -> str:
    """One chain in five is for testing. Not by `splits.split_of`, since published results are on these chains."""
    return TEST if random.Random(f"split {chain}").randrange(5) == 0 else TRAIN


def chains(count: int, *, terms: int = 4, largest: int = 9, split: str = TRAIN, seed: int = 0) -> list[Item]:
    """Distinct chains. No chain is in both splits."""
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


DEFAULT, LEADER = "solver_verifier", "leader_workers"
# The arguments of workflows whose agents, but for a `verifier`, answer with a box; and of one whose leader delegates.
TEAMS: Mapping[str, FreeSettings] = {
    DEFAULT: {},
    "debate": {},
    "generate_verify_refine": {},
    "cory": {},
    LEADER: {"max_rounds": 1, "max_workers": 2},
}


def lessons(terms: int, largest: int, *, noise: float, seed: int = 0, team: str = DEFAULT) -> Iterator[Lesson]:
    """Endless; only training chains. `noise` is the share of steps whose result is random."""
    rng = random.Random(f"lessons {seed}")
    workflow = resolve(WorkflowSpec(team, args=TEAMS[team]))
    while True:
        chain = draw(terms, largest, rng)
        if chain_split(chain) == TRAIN:
            task = Task([{"role": "user", "content": chain}], ground_truth=str(sum(signed(chain))))
            expert = LeaderExpert(chain, noise, rng) if team == LEADER else ChainExpert(chain, largest, noise, rng)
            yield from demonstrate(workflow, task, expert)


class ChainExpert:
    """Each agent works through the chain and ends with the result, or a verifier with its verdict."""

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
        """For 7+1-2= the text 7+1=8-2=6, and the 6. A wrong result is used by the next step."""
        total, working = self._first, str(self._first)
        for step in self._steps:
            total = min(self._largest, max(0, total + step))
            if self._rng.random() < self._noise:
                total = self._rng.randint(0, self._largest)
            working += f"{step:+d}={total}"
        return working, total


class LeaderExpert:
    """The leader delegates the two halves of the chain, and adds what two workers report; each may be one off."""

    def __init__(self, chain: str, noise: float, rng: random.Random):
        numbers = signed(chain)
        half = (len(numbers) + 1) // 2
        self._halves = numbers[:half], numbers[half:]
        self._noise, self._rng = noise, rng
        self._reports: list[int] = []

    def __call__(self, request: Request) -> str:
        if request.agent == "leader":
            if self._reports:
                return Boxed().render(str(self._inexact(sum(self._reports))))
            return Moves(len(self._halves)).render(Delegation(tuple(map(_written, self._halves))))
        half = self._halves[len(self._reports)]
        self._reports.append(self._inexact(sum(half)))
        return f"{_written(half)}{self._reports[-1]}"

    def _inexact(self, total: int) -> int:
        return total + self._rng.choice((-1, 1)) * (self._rng.random() < self._noise)


def _written(numbers: Sequence[int]) -> str:
    """As in a chain: 3+5=, and of a later part -2+1=."""
    return f"{numbers[0]}{''.join(f'{number:+d}' for number in numbers[1:])}="


@DATA_SETS.register("arithmetic")
class Arithmetic(Generated):
    """Short sums for a tiny model."""

    warm_up = WarmUp(steps=1_300, batch=64, learning_rate=4e-3, lessons=40_000)
    rows = (640, 160)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--terms", type=int, default=3)
        parser.add_argument("--largest", type=int, default=9)
        about = f"the workflow of the demonstrations: {', '.join(TEAMS)}"
        parser.add_argument("--team", choices=TEAMS, default=DEFAULT, metavar="TEAM", help=about)

    def generate(self, options: argparse.Namespace) -> Prepared:
        kind = {"terms": options.terms, "largest": options.largest, "seed": options.seed}
        train, test = chains(options.train_rows, split=TRAIN, **kind), chains(options.test_rows, split=TEST, **kind)
        return Prepared(train, test, test, {"arithmetic": kind})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(options.terms, options.largest, noise=options.noise, seed=options.seed, team=options.team)
