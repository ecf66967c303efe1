"""Chooses the tests of a task, and checks that its golden programs pass them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from verl_mas.config.hydra.recipe.code.formats import Draft, Drop, Dropped
from verl_mas.config.values import Count
from verl_mas.environment.execution.contained.harness import NotPlain, dumps
from verl_mas.environment.execution.executor import Executor, Limits, Status
from verl_mas.environment.execution.problem import Problem, Returns, Stdio, Test, run_tests
from verl_mas.errors import DataError

EXAMPLE_CHARACTERS = 2_000  # a test with a longer input and output is not searched for in a statement


class ExamplesFrom(str, Enum):
    """Sources of a task's public examples. The manifest counts each."""

    SET = "public_tests"
    STATEMENT = "statement"
    FIRST_TEST = "first_test"


@dataclass(frozen=True)
class Chosen:
    """The chosen tests of a task. Hidden tests and examples differ, unless there are too few tests."""

    tests: Sequence[Test]
    examples: Sequence[Test]
    examples_from: ExamplesFrom
    left_out: int


def choose(draft: Draft, most: int, longest: int, seed: str) -> Chosen:
    """Choose at most `most` tests of at most `longest` characters, preferring short ones, and random ones among tests
    of similar length."""
    # Tests that expect no output are excluded, because a program that does nothing passes them.
    sound = [test for test in _distinct(draft.tests) if isinstance(test, Returns) or test.output.split()]
    if not sound:
        raise Dropped(Drop.NO_TESTS)
    usable = [test for test in sound if _length(test) <= longest]
    if not usable:
        raise Dropped(Drop.LONG_TESTS)
    examples, examples_from = _examples(draft, usable)
    hidden = [test for test in usable if test not in examples] or usable
    random.Random(seed).shuffle(hidden)
    tests = sorted(hidden, key=lambda test: _length(test).bit_length())[:most]
    return Chosen(tests, examples, examples_from, len(sound) - len({*map(repr, tests), *map(repr, examples)}))


def _examples(draft: Draft, usable: Sequence[Test]) -> tuple[Sequence[Test], ExamplesFrom]:
    given = [test for test in _distinct(draft.public) if test in usable]
    if given:
        return given, ExamplesFrom.SET
    stated = [test for test in usable if isinstance(test, Stdio) and _is_stated(test, draft.question)]
    return (stated, ExamplesFrom.STATEMENT) if stated else (usable[:1], ExamplesFrom.FIRST_TEST)


def _is_stated(test: Stdio, statement: str) -> bool:
    """Whether the statement shows the test as an example: "Input" and then the input, "Output" and then the output."""
    given, printed = test.input.split(), test.output.split()
    if not given or len(test.input) + len(test.output) > EXAMPLE_CHARACTERS or given[0] not in statement:
        return False
    before, after = (r"\s+".join(map(re.escape, words)) for words in (given, printed))
    heading = r"(?:\s+[0-9]+)?[\s:*`#-]*"
    between = rf"[\s*`#-]*(?:(?:sample|example|expected)\s+)?output{heading}"
    return re.search(rf"input{heading}\s{before}\s{between}\s{after}(?!\S)", statement, re.IGNORECASE) is not None


def _distinct(tests: Sequence[Test]) -> list[Test]:
    return list({repr(test): test for test in tests}.values())


def _length(test: Test) -> int:
    return len(test.input) + len(test.output) if isinstance(test, Stdio) else len(repr(test))


# LeetCode's solutions use these names without importing them. `from math import *` would replace the built-in pow.
IMPORTS = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
from typing import *
from collections import *
from itertools import *
from functools import *
from heapq import *
from bisect import *
from math import ceil, comb, factorial, floor, gcd, inf, log2, prod, sqrt"""


@dataclass(frozen=True)
class Rules:
    """Limits for the tasks that are kept."""

    max_tests: Count = 10
    max_test_characters: Count = 20_000
    max_question_characters: Count = 12_000
    golden_programs: Count = 5  # golden programs that are run per task, at most
    seed: int = 0


@dataclass(frozen=True)
class Judged:
    """The result of a row: the reason why it is dropped, or the task that is kept."""

    dropped: str | None = None
    question: str = ""
    truth: str = ""  # the text of a Problem, with a golden program that passed its tests, if there is one
    golden: bool = False
    examples_from: str = ""
    examples_alone: bool = False
    tests_left_out: int = 0


class GoldenOutcome(Enum):
    PASSES = "passes all tests"
    DIFFERS = "ends by itself on all tests, and differs from what one expects"
    FAILS = "fails on a test"


@dataclass(frozen=True)
class Judge:
    """Runs golden programs. A failure of the executor itself is raised, and drops no task."""

    executor: Executor
    limits: Limits
    rules: Rules

    async def judge(self, draft: Draft, name: str, *, golden_required: bool) -> Judged:
        """Make the task of a draft. `name` is the seed for random choices. Raises Dropped."""
        if len(draft.question) > self.rules.max_question_characters:
            raise Dropped(Drop.LONG_QUESTION)
        if not draft.tests:
            raise Dropped(Drop.NO_TESTS)
        if not draft.golden and golden_required:
            raise Dropped(Drop.NO_GOLDEN)
        if not draft.golden and draft.wrapped:
            raise Dropped(Drop.AMBIGUOUS)
        reason = Drop.GOLDEN_FAILS
        for reading in _readings(draft):
            try:
                return await self._judged(reading, name, golden_required=golden_required)
            except Dropped as dropped:
                reason = dropped.reason
        raise Dropped(reason)

    async def _judged(self, draft: Draft, name: str, *, golden_required: bool) -> Judged:
        seed = f"{self.rules.seed} {name}"
        try:
            chosen = choose(draft, self.rules.max_tests, self.rules.max_test_characters, seed)
            problem = Problem(chosen.tests, chosen.examples, time_limit_s=draft.time_limit_s)
            problem.text()
            for test in (*problem.tests, *problem.examples):
                if isinstance(test, Returns):
                    dumps([*test.call.args, test.expected])
        # Raised, for example, for tests of both kinds, an expected value that is not a literal, or deeply nested lists.
        except (DataError, NotPlain, RecursionError) as error:
            raise Dropped(Drop.UNREADABLE_TESTS) from error
        programs = list(dict.fromkeys(program for program in draft.golden if program.strip()))
        random.Random(seed).shuffle(programs)
        if isinstance(chosen.tests[0], Returns):
            programs = [f"{IMPORTS}\n\n{program}" for program in programs]
        programs = programs[: self.rules.golden_programs]
        limits = problem.limits(self.limits)
        tests = [*chosen.examples, *(test for test in chosen.tests if test not in chosen.examples)]
        outcomes = {program: await self._outcome(program, tests, limits) for program in programs}
        right = [program for program, outcome in outcomes.items() if outcome is GoldenOutcome.PASSES]
        if GoldenOutcome.DIFFERS in outcomes.values():
            # Several outputs are right, or a test or a program is wrong, and it is unknown which.
            raise Dropped(Drop.GOLDEN_DISAGREE if right else Drop.GOLDEN_FAILS)
        if not right and (golden_required or draft.wrapped):
            raise Dropped(Drop.GOLDEN_FAILS)
        return Judged(
            question=_question(draft, chosen),
            truth=replace(problem, golden=right[0] if right else None).text(),
            golden=bool(right),
            examples_from=chosen.examples_from.value,
            examples_alone=set(map(repr, problem.tests)) <= set(map(repr, problem.examples)),
            tests_left_out=chosen.left_out,
        )

    async def _outcome(self, program: str, tests: Sequence[Test], limits: Limits) -> GoldenOutcome:
        # Run one test first, so that a Python 2 program, or a program that hangs, costs a single run.
        verdicts = await run_tests(self.executor, program, tests[:1], limits)
        if verdicts[0].status is Status.OK:
            verdicts += await run_tests(self.executor, program, tests[1:], limits)
        if any(verdict.status is not Status.OK for verdict in verdicts):
            return GoldenOutcome.FAILS
        return GoldenOutcome.PASSES if all(verdict.passed for verdict in verdicts) else GoldenOutcome.DIFFERS


def _question(draft: Draft, chosen: Chosen) -> str:
    """Return the statement. If the statement has no example, the first test is appended as an example, unless this test
    is also hidden."""
    question, example = draft.question.strip(), chosen.examples[0]
    if chosen.examples_from is not ExamplesFrom.FIRST_TEST or example in chosen.tests:
        return question
    if isinstance(example, Returns):
        return f"{question}\n\nExample\n\n{example.text()}"
    return f"{question}\n\nExample\n\nInput\n{example.input.strip()}\n\nOutput\n{example.output.strip()}"


def _readings(draft: Draft) -> list[Draft]:
    """Return a draft for each possible meaning of the expected values: `[3]` means a list, or 3. A golden program shows
    which meaning is right."""
    if not draft.wrapped:
        return [draft]
    contents = [
        replace(test, expected=test.expected[0])
        for test in draft.tests
        if isinstance(test, Returns) and isinstance(test.expected, list)
    ]
    return [draft, replace(draft, tests=contents)]
