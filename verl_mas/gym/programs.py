"""Tiny programming tasks: "above 3, times 4, sum" keeps, changes and combines the numbers of a line of input."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from verl_mas.data.items import Item
from verl_mas.errors import ConfigError
from verl_mas.execution.problem import Problem
from verl_mas.execution.unit_tests import Stdio
from verl_mas.util.splits import TRAIN, split_of

Numbers = tuple[int, ...]
# Of the numbers in a test's input.
LARGEST = 9
# Hidden tests per task, and the number of inputs that they are chosen from.
HIDDEN, CANDIDATES = 4, 24

_COMPARED = range(2, 8)
# By the words of a statement: the code of the part, for a number x.
KEEP = {
    "odd": "x%2",
    "even": "x%2==0",
    **{f"above {c}": f"x>{c}" for c in _COMPARED},
    **{f"at least {c}": f"x>={c}" for c in _COMPARED},
    **{f"below {c}": f"x<{c}" for c in _COMPARED},
    **{f"at most {c}": f"x<={c}" for c in _COMPARED},
}
CHANGE = {
    "squared": "x*x",
    "negated": "-x",
    **{f"times {c}": f"x*{c}" for c in range(2, 6)},
    **{f"plus {c}": f"x+{c}" for c in range(1, 6)},
    **{f"minus {c}": f"x-{c}" for c in range(1, 6)},
}
# What the code computes: of these tables, never of a model.
_COMPUTE: dict[str, Callable[[int], int]] = {
    code: eval(f"lambda x: {code}") for code in (*KEEP.values(), *CHANGE.values())
}
COMBINE: dict[str, tuple[str, Callable[[Sequence[int]], object]]] = {
    "sum": ("print(sum({}))", sum),
    "max": ("print(max({}))", max),
    "min": ("print(min({}))", min),
    "list": ("print(*({}))", lambda numbers: " ".join(map(str, numbers))),
}
# Conditions that are easily confused.
TWIN = {"odd": "even", "even": "odd"} | {
    f"{one} {c}": f"{other} {c}"
    for pair in (("above", "at least"), ("below", "at most"))
    for one, other in itertools.permutations(pair)
    for c in _COMPARED
}


@dataclass(frozen=True)
class Program:
    """A program, by the words of its three parts."""

    keep: str
    change: str
    combine: str

    @property
    def statement(self) -> str:
        return f"{self.keep}, {self.change}, {self.combine}"

    @property
    def code(self) -> str:
        numbers = f"{CHANGE[self.change]} for x in map(int,input().split())if {KEEP[self.keep]}"
        return COMBINE[self.combine][0].format(numbers)

    def output(self, numbers: Numbers) -> str | None:
        """What it prints; None if it fails, as max and min do without numbers."""
        left = _left(self.keep, self.change, numbers)
        if not left and self.combine in ("max", "min"):
            return None
        return str(COMBINE[self.combine][1](left))

    def variants(self) -> Iterator[Program]:
        """The programs that differ in one part."""
        for part, table in (("keep", KEEP), ("change", CHANGE), ("combine", COMBINE)):
            yield from (replace(self, **{part: words}) for words in table if words != getattr(self, part))


@cache
def _left(keep: str, change: str, numbers: Numbers) -> Numbers:
    kept, changed = _COMPUTE[KEEP[keep]], _COMPUTE[CHANGE[change]]
    return tuple(changed(x) for x in numbers if kept(x))


def programs(split: str) -> list[Program]:
    """All programs of a split. No statement is in both splits."""
    every = (Program(*words) for words in itertools.product(KEEP, CHANGE, COMBINE))
    return [program for program in every if split_of(program.statement) == split]


def draw_numbers(rng: random.Random, count: int) -> Numbers:
    return tuple(rng.randint(0, LARGEST) for _ in range(count))


def problem(program: Program, rng: random.Random) -> Problem:
    """One example, and hidden tests that few programs that differ in one part pass: the twin none, if there is one."""
    inputs: dict[Numbers, None] = {}
    while len(inputs) < CANDIDATES:
        numbers = draw_numbers(rng, rng.randint(1, 5))
        if _left(program.keep, program.change, numbers):
            inputs[numbers] = None
    example, *others = inputs
    hidden: list[Numbers] = []
    wrong = list(program.variants())
    twin = replace(program, keep=TWIN[program.keep])
    for _ in range(HIDDEN):
        passing = {numbers: _passing(wrong, program, numbers) for numbers in others if numbers not in hidden}
        hidden.append(
            min(passing, key=lambda numbers: (twin.output(numbers) == program.output(numbers), len(passing[numbers])))
        )
        wrong = passing[hidden[-1]]
    return Problem([_test(program, numbers) for numbers in hidden], [_test(program, example)], golden=program.code)


def _passing(programs: Sequence[Program], golden: Program, numbers: Numbers) -> list[Program]:
    expected = golden.output(numbers)
    return [program for program in programs if program.output(numbers) == expected]


def _test(program: Program, numbers: Numbers) -> Stdio:
    return Stdio(line(numbers), str(program.output(numbers)))


def line(numbers: Numbers) -> str:
    return " ".join(map(str, numbers))


def question(program: Program, of: Problem) -> str:
    """The statement and its examples, in the form in which a tiny tester writes tests."""
    examples = [f"{test.input}>{test.output}" for test in of.examples if isinstance(test, Stdio)]
    return "\n".join([program.statement, *examples])


def tasks(count: int, *, split: str = TRAIN, seed: int = 0) -> list[Item]:
    """Different tasks of a split, in random order."""
    found = programs(split)
    if count > len(found):
        raise ConfigError(
            f"{count} tiny programs",
            rule=f"there are only {len(found)} in {split!r} (train or test)",
            fix="use fewer rows",
        )
    rng = random.Random(f"{split} {seed}")
    return [_item(program, problem(program, rng)) for program in rng.sample(found, count)]


def _item(program: Program, of: Problem) -> Item:
    return Item(question(program, of), of.text(), "programs")
