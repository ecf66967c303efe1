"""Tiny programming tasks: "above 3, times 4, sum" filters, changes and combines the numbers in a line of input."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from verl_mas.config.schema import WorkflowSpec
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item, sampled
from verl_mas.environment.coding.prompts import ShortCase, WrittenCase
from verl_mas.environment.execution.executor import Answer, Call, Execution, Executor, Limits, Result, Status
from verl_mas.environment.execution.problem import Problem, Stdio
from verl_mas.gym.warmup import Generated, Lesson, WarmUp, demonstrate
from verl_mas.util.splits import TEST, TRAIN, split_of
from verl_mas.workflow import Request, Task
from verl_mas.workflow.base import resolve

Numbers = tuple[int, ...]
LARGEST = 9  # the largest number in a test's input
HIDDEN, CANDIDATES = 4, 24  # hidden tests per task, and the number of inputs from which they are chosen

_COMPARED = range(2, 8)
# Words of a statement -> the code of that part, for a number x.
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
# Functions for the code in these tables; code of a model is never evaluated.
_COMPUTE: dict[str, Callable[[int], int]] = {
    code: eval(f"lambda x: {code}") for code in (*KEEP.values(), *CHANGE.values())
}
COMBINE: dict[str, tuple[str, Callable[[Sequence[int]], object]]] = {
    "sum": ("print(sum({}))", sum),
    "max": ("print(max({}))", max),
    "min": ("print(min({}))", min),
    "list": ("print(*({}))", lambda numbers: " ".join(map(str, numbers))),
}
# Conditions that are easily confused with each other.
TWIN = {"odd": "even", "even": "odd"} | {
    f"{one} {c}": f"{other} {c}"
    for pair in (("above", "at least"), ("below", "at most"))
    for one, other in itertools.permutations(pair)
    for c in _COMPARED
}


@dataclass(frozen=True)
class Program:
    """A program, given by the words of its three parts."""

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
        """Compute the output of the program; None if it fails, as max and min do without numbers."""
        left = _left(self.keep, self.change, numbers)
        if not left and self.combine in ("max", "min"):
            return None
        return str(COMBINE[self.combine][1](left))

    def variants(self) -> Iterator[Program]:
        """Yield the programs that differ in one part."""
        for part, table in (("keep", KEEP), ("change", CHANGE), ("combine", COMBINE)):
            yield from (replace(self, **{part: words}) for words in table if words != getattr(self, part))


@cache
def _left(keep: str, change: str, numbers: Numbers) -> Numbers:
    kept, changed = _COMPUTE[KEEP[keep]], _COMPUTE[CHANGE[change]]
    return tuple(changed(x) for x in numbers if kept(x))


def programs(split: str) -> list[Program]:
    """Return all programs of a split. No statement is in both splits."""
    every = (Program(*words) for words in itertools.product(KEEP, CHANGE, COMBINE))
    return [program for program in every if split_of(program.statement) == split]


def draw_numbers(rng: random.Random, count: int) -> Numbers:
    return tuple(rng.randint(0, LARGEST) for _ in range(count))


def problem(program: Program, rng: random.Random) -> Problem:
    """Make a problem with one example, and with hidden tests that few wrong programs pass.

    A wrong program differs from `program` in one part. If possible, the twin program fails every hidden test.
    """
    inputs: dict[Numbers, None] = {}
    while len(inputs) < CANDIDATES:
        numbers = draw_numbers(rng, rng.randint(1, 5))
        if _left(program.keep, program.change, numbers):
            inputs[numbers] = None
    example, *others = inputs
    hidden: list[Numbers] = []
    wrong = list(program.variants())
    twin = replace(program, keep=TWIN[program.keep])
    expected = {numbers: program.output(numbers) for numbers in inputs}
    for _ in range(HIDDEN):
        passing = {
            numbers: [other for other in wrong if other.output(numbers) == expected[numbers]]
            for numbers in others
            if numbers not in hidden
        }
        hidden.append(min(passing, key=lambda each: (twin.output(each) == expected[each], len(passing[each]))))
        wrong = passing[hidden[-1]]
    examples, *tests = (Stdio(line(numbers), str(expected[numbers])) for numbers in (example, *hidden))
    return Problem(tests, [examples], golden=program.code)


def line(numbers: Numbers) -> str:
    return " ".join(map(str, numbers))


def question(program: Program, of: Problem) -> str:
    """Format the statement and its examples, in the form in which a tiny tester writes tests."""
    examples = [f"{test.input}>{test.output}" for test in of.examples if isinstance(test, Stdio)]
    return "\n".join([program.statement, *examples])


def tasks(count: int, *, split: str = TRAIN, seed: int = 0) -> list[Item]:
    """Sample different tasks of a split, in random order."""
    rng = random.Random(f"{split} {seed}")
    chosen = sampled(programs(split), count, rng, kind="tiny programs", split=split)
    problems = ((program, problem(program, rng)) for program in chosen)
    return [Item(question(program, of), of.text(), "programs") for program, of in problems]


# Factors of `noise`. The products are the probability that a part other than the condition is random, and the
# probability that a tester makes a coder's mistakes.
_OTHER_PARTS, _TESTS = 0.2, 0.4
_ONE = 0.6  # the share of tests with one number; the others have two numbers, and are harder to get right


def lessons(*, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Yield demonstrations endlessly, on training tasks only.

    With probability `noise`, a program has the twin of its condition. So if `noise` is above one half, the mistake is
    more frequent than the right condition. The control, a single coder, has the same prompts as the team's coder.
    """
    rng = random.Random(f"lessons {seed}")
    args = {"text": "compact", "max_turns": 2, "execution": {"executor": f"{__name__}:Interpreter"}}
    team = resolve(WorkflowSpec("coder_tester", args=args))
    every = programs(TRAIN)
    problems: dict[Program, Problem] = {}
    while True:
        program = rng.choice(every)
        of = problems.get(program) or problems.setdefault(program, problem(program, rng))
        task = Task([{"role": "user", "content": question(program, of)}], ground_truth=of.text())
        yield from demonstrate(team, task, CodingExperts(program, noise, rng))


class CodingExperts:
    """Plays coder and tester of one task."""

    def __init__(self, program: Program, noise: float, rng: random.Random):
        self._program, self._noise, self._rng = program, noise, rng

    def __call__(self, request: Request) -> str:
        return self._test() if request.agent == "tester" else self._written().code

    def _written(self) -> Program:
        """Return the program with random mistakes."""
        program, rng = self._program, self._rng
        if rng.random() < self._noise:
            program = replace(program, keep=TWIN[program.keep])
        if rng.random() < self._noise * _OTHER_PARTS:
            program = replace(program, change=rng.choice(list(CHANGE)))
        if rng.random() < self._noise * _OTHER_PARTS:
            program = replace(program, combine=rng.choice(list(COMBINE)))
        return program

    def _test(self) -> str:
        believed = self._written() if self._rng.random() < self._noise * _TESTS else self._program
        while True:
            numbers = draw_numbers(self._rng, 1 if self._rng.random() < _ONE else 2)
            if output := believed.output(numbers):
                return ShortCase().render(WrittenCase(line(numbers), output))


class Interpreter(Executor):
    """Computes the output of the expert's programs without a process. All these programs are known, so it computes
    thousands per second."""

    def __init__(self, settings: Execution):
        self._known = {program.code: program for split in (TRAIN, TEST) for program in programs(split)}

    async def execute(self, program: str, stdin: str = "", limits: Limits | None = None) -> Result:
        output = self._known[program].output(tuple(map(int, stdin.split())))
        return Result(Status.ERROR, exit_code=1) if output is None else Result(Status.OK, output, exit_code=0)

    async def call(self, program: str, calls: Sequence[Call], limits: Limits | None = None) -> list[Answer]:
        raise NotImplementedError("these programs read standard input")


@DATA_SETS.register("programs")
class Programs(Generated):
    """Tiny programming tasks for a tiny model."""

    warm_up = WarmUp(steps=1_300, batch=64, learning_rate=4e-3, lessons=40_000)
    rows = (1_000, 200)

    def generate(self, options: argparse.Namespace) -> Prepared:
        train = tasks(options.train_rows, split=TRAIN, seed=options.seed)
        test = tasks(options.test_rows, split=TEST, seed=options.seed)
        return Prepared(train, test, test, {"programs": {"seed": options.seed}})

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(noise=options.noise, seed=options.seed)
