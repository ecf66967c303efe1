"""The ground truth of a code task. It defines what a program must do, and is one JSON text in the dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

from verl_mas.config.values import load_dataclass
from verl_mas.environment.execution.limits import Limits
from verl_mas.environment.execution.unit_tests import Stdio, Test, read_assert
from verl_mas.errors import ConfigError, DataError

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
