"""The ground truth of a code task, which is a JSON string in the dataset, and the tests in this ground truth.

A program cannot forge a verdict, because expected values never enter the process that runs it. This module compares
results, as text or as plain values of exact built-in types.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from verl_mas.config.values import load_dataclass
from verl_mas.environment.execution.executor import Answer, Call, Executor, Limits, Plain, Result, Status
from verl_mas.errors import ConfigError, DataError

TOLERANCE = 1e-6
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Longer numbers are compared as text: converting them takes time, and no float needs as many digits.
_MAX_NUMBER = 400


@dataclass(frozen=True)
class Stdio:
    """A test of a program, which must print this output for this input."""

    input: str
    output: str


@dataclass(frozen=True)
class Returns:
    """A test of a function: this call must return this plain value."""

    call: Call
    expected: Plain

    def text(self) -> str:
        """Write the test as an assert. Refuses values without a literal, such as nan."""
        owner, _, name = self.call.function.rpartition(".")
        function = f"{owner}().{name}" if owner else name
        arguments = [*map(repr, self.call.args), *(f"{key}={value!r}" for key, value in self.call.kwargs.items())]
        written = f"assert {function}({', '.join(arguments)}) == {self.expected!r}"
        read_assert(written)
        return written


Test: TypeAlias = Stdio | Returns


@dataclass(frozen=True)
class Verdict:
    """Whether a test passed, how the program ended on it, and what it printed or returned.

    `seconds` is the time of the program's process; 0 for calls, which share a process.
    """

    passed: bool
    status: Status
    got: Plain = None
    error: str | None = None
    seconds: float = 0.0


async def run_tests(executor: Executor, program: str, tests: Sequence[Test], limits: Limits) -> list[Verdict]:
    """Return a verdict per test. Each input runs in its own process; all calls share a process."""
    inputs = list(dict.fromkeys(test.input for test in tests if isinstance(test, Stdio)))
    calls = list({repr(test.call): test.call for test in tests if isinstance(test, Returns)}.values())
    answers, results = await asyncio.gather(
        _answers(executor, program, calls, limits),
        asyncio.gather(*(executor.execute(program, text, limits) for text in inputs)),
    )
    printed = dict(zip(inputs, results, strict=True))
    returned = {repr(call): answer for call, answer in zip(calls, answers, strict=True)}
    return [
        _printed(test, printed[test.input]) if isinstance(test, Stdio) else _returned(test, returned[repr(test.call)])
        for test in tests
    ]


async def _answers(executor: Executor, program: str, calls: Sequence[Call], limits: Limits) -> list[Answer]:
    return await executor.call(program, calls, limits) if calls else []


def _printed(test: Stdio, result: Result) -> Verdict:
    passed = result.ok and same_output(result.stdout, test.output)
    return Verdict(passed, result.status, result.stdout, result.error, result.seconds)


def _returned(test: Returns, answer: Answer) -> Verdict:
    if answer.error is not None:
        return Verdict(False, Status.ERROR, error=answer.error)
    return Verdict(same_value(answer.value, test.expected), Status.OK, answer.value)


def same_output(got: str, expected: str) -> bool:
    """Whether two outputs have the same tokens, separated by whitespace. If an expected number has a point or an
    exponent, the printed number may differ from it by 1e-6 times the larger of 1 and the expected number."""
    tokens, wanted = got.split(), expected.split()
    return len(tokens) == len(wanted) and all(map(_same_token, tokens, wanted))


def _same_token(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if len(got) > _MAX_NUMBER or not _NUMBER.fullmatch(got) or not _NUMBER.fullmatch(expected):
        return False
    return not expected.lstrip("+-").isdigit() and _close(float(got), float(expected))


def _close(got: complex, expected: complex) -> bool:
    return got == expected or abs(got - expected) <= TOLERANCE * max(1.0, abs(expected)) < float("inf")


def same_value(got: Plain, expected: Plain) -> bool:
    """Whether plain values are equal. A tuple equals a list, 1 is not True, and floats may differ by 1e-6 times the
    larger of 1 and the expected value."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(same_value, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        values = {_key(key): value for key, value in got.items()}
        return len(got) == len(expected) and all(
            _key(key) in values and same_value(values[_key(key)], value) for key, value in expected.items()
        )
    if isinstance(got, set | frozenset) and isinstance(expected, set | frozenset):
        return set(map(_key, got)) == set(map(_key, expected))
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, int | float | complex) and isinstance(expected, float | complex):
        try:
            return _close(complex(got), complex(expected))
        except OverflowError:  # an int of hundreds of digits
            return False
    return got == expected


def _key(value: Plain) -> Plain:
    """Return a key for a value in a set or a dict. Keys are equal if `same_value` would hold without a tolerance for
    floats."""
    if isinstance(value, bool):
        return (bool, value)
    return type(value)(map(_key, value)) if isinstance(value, tuple | frozenset) else value


def read_assert(text: str) -> Returns:
    """Parse `assert f(1, [2], k=3) == 4`, or `assert Solution().f(1) == 4`, as a test. All values are literals."""
    try:
        match ast.parse(text.strip()).body:
            case [ast.Assert(ast.Compare(ast.Call() as call, [ast.Eq()], [expected]))]:
                return Returns(_call(call), _literal(expected))
        raise ValueError("it is not one call compared with ==")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        value = f"the test {text!r:.200}: {type(error).__name__}: {error}"
        rule = (
            'a test of a function is "assert f(arguments) == value", in which every argument and the value is a literal'
        )
        raise DataError(value, rule=rule, fix="write such tests, tests of kind stdio, or drop the row") from error


def _call(node: ast.Call) -> Call:
    kwargs: dict[str, Plain] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("the arguments of a call are written out, without **")
        kwargs[keyword.arg] = _literal(keyword.value)
    return Call(_name(node.func), [_literal(arg) for arg in node.args], kwargs)


def _literal(node: ast.expr) -> Plain:
    try:
        value: Plain = ast.literal_eval(node)
    except ValueError as error:  # replace the message, which has the node's address in memory
        raise ValueError(f"{ast.unparse(node)[:80]} is not a literal") from error
    return value


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Call(ast.Name(owner), [], []), name):
            return f"{owner}.{name}"
    raise ValueError("it calls neither a function nor a method of an object made without arguments")


_RULE = (
    'it is a JSON object such as {"kind": "stdio", "tests": [{"input": "1 2", "output": "3"}], "examples": [], '
    '"golden": null, "time_limit_s": null}; with "kind": "call" a test is a text "assert f(1, 2) == 3"'
)
_FIX = "prepare the data with `verl-mas data code`, or remove such rows"


@dataclass(frozen=True)
class Fields:
    """A ground truth in the form of the dataset, in which a test of a function is an assert statement."""

    kind: Literal["stdio", "call"]
    tests: Sequence[Stdio | str] = ()
    examples: Sequence[Stdio | str] = ()
    golden: str | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Problem:
    """The ground truth of a code task. `tests` are hidden; `examples` are part of the statement."""

    tests: Sequence[Test]
    examples: Sequence[Test] = ()
    golden: str | None = None
    """A program that passes the tests."""
    time_limit_s: float | None = None
    """The limit of a program's CPU time, in seconds; None: the limit in the team's settings."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tests", tuple(self.tests))
        object.__setattr__(self, "examples", tuple(self.examples))
        if not self.tests:
            raise _refused("a code task without tests", "a program is rewarded for the tests that it passes")
        if len({type(test) for test in (*self.tests, *self.examples)}) > 1:
            raise _refused("a code task with tests of both kinds", "all read stdin and stdout, or all call functions")
        for test in (*self.tests, *self.examples):
            if isinstance(test, Stdio) and not test.output.split():
                value = f"a test that expects no output: {test!r:.200}"
                raise _refused(value, "a test says what a program prints for its input")
        if self.golden is not None and not self.golden.strip():
            raise _refused("an empty golden program", "it is a program that passes the tests, or null")
        if self.time_limit_s is not None and not 0 < self.time_limit_s <= 3600:
            raise _refused(f"time_limit_s {self.time_limit_s}", "it is above 0 and at most 3600, or null")

    @property
    def kind(self) -> Literal["stdio", "call"]:
        return "stdio" if isinstance(self.tests[0], Stdio) else "call"

    def limits(self, limits: Limits) -> Limits:
        """Return the limits of a team, with the time limit of this problem if it has one."""
        return limits if self.time_limit_s is None else replace(limits, cpu_s=self.time_limit_s)

    def text(self) -> str:
        """Write the problem in the format that `read` reads."""
        return json.dumps({item.name: getattr(self, item.name) for item in fields(Fields)}, default=_written)

    @classmethod
    def read(cls, ground_truth: object) -> Problem:
        """Read the problem of a dataset row from `task.ground_truth`."""
        if not isinstance(ground_truth, str):
            raise _refused(f"the ground truth {ground_truth!r:.200} of a code task", _RULE)
        return _read(ground_truth)


@lru_cache(maxsize=256)  # every session of a task reads the ground truth, and parsing large literals takes a while
def _read(text: str) -> Problem:
    try:
        found = load_dataclass(Fields, json.loads(text), "ground_truth")
    except (ValueError, RecursionError) as error:
        reason = error.value if isinstance(error, ConfigError) else error
        raise _refused(f"the ground truth {text!r:.200} of a code task: {reason!s:.200}", _RULE) from error
    tests, examples = (
        [read_assert(test) if isinstance(test, str) else test for test in given]
        for given in (found.tests, found.examples)
    )
    problem = Problem(tests, examples, found.golden, found.time_limit_s)
    if problem.kind != found.kind:
        value = f"kind {found.kind} with the test {found.tests[0]!r:.200} in the ground truth of a code task"
        raise _refused(value, _RULE)
    return problem


def _written(test: Test) -> str | dict[str, str]:
    return {"input": test.input, "output": test.output} if isinstance(test, Stdio) else test.text()


def _refused(value: str, rule: str) -> DataError:
    return DataError(value, rule=rule, fix=_FIX)
