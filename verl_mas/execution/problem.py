"""The ground truth of a code task, which says what a program must do, as one JSON text in the dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from verl_mas.errors import DataError
from verl_mas.execution.limits import Limits
from verl_mas.execution.unit_tests import Stdio, Test, read_assert

FIELDS = ("kind", "tests", "examples", "golden", "time_limit_s")
_RULE = (
    'it is a JSON object such as {"kind": "stdio", "tests": [{"input": "1 2", "output": "3"}], "examples": [], '
    '"golden": null, "time_limit_s": null}; with "kind": "call" a test is a text "assert f(1, 2) == 3"'
)
_FIX = "prepare the data with `verl-mas data code`, or remove such rows"


@dataclass(frozen=True)
class Problem:
    """The ground truth of a code task. `tests` are hidden; `examples` are part of the statement."""

    tests: Sequence[Test]
    examples: Sequence[Test] = ()
    golden: str | None = None
    """A program that passes the tests."""
    time_limit_s: float | None = None
    """CPU seconds of a program; None: the team's setting."""

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
        """The limits of a team, with the time limit of this problem if it has one."""
        return limits if self.time_limit_s is None else replace(limits, cpu_s=self.time_limit_s)

    def text(self) -> str:
        """Write the problem in the format that `read` reads."""
        return json.dumps({name: getattr(self, name) for name in FIELDS}, default=_written)

    @classmethod
    def read(cls, ground_truth: object) -> Problem:
        """The problem of a dataset row, from `task.ground_truth`."""
        if not isinstance(ground_truth, str):
            raise _refused(f"the ground truth {ground_truth!r:.200} of a code task", _RULE)
        return _read(ground_truth)


@lru_cache(maxsize=256)  # every session of a task reads it, and parsing large literals takes a while
def _read(text: str) -> Problem:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(f"the ground truth {text!r:.200} of a code task: {error}", _RULE) from error
    if not isinstance(fields, dict):
        raise _refused(f"the ground truth {text!r:.200} of a code task", _RULE)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise _refused(f"the fields {', '.join(unknown)} in the ground truth of a code task", _RULE)
    kind, golden, limit = fields.get("kind"), fields.get("golden"), fields.get("time_limit_s")
    if kind not in ("stdio", "call"):
        raise _refused(f"kind {kind!r:.80} in the ground truth of a code task", _RULE)
    if not isinstance(golden, str | None):
        raise _refused(f"golden {golden!r:.80} in the ground truth of a code task", _RULE)
    if not isinstance(limit, int | float | None) or isinstance(limit, bool):
        raise _refused(f"time_limit_s {limit!r:.80} in the ground truth of a code task", _RULE)
    return Problem(_tests(fields, "tests", kind), _tests(fields, "examples", kind), golden, limit)


def _tests(fields: dict[str, object], name: str, kind: str) -> list[Test]:
    tests = fields.get(name)
    if tests is None:
        return []
    if not isinstance(tests, list):
        raise _refused(f"{name} {tests!r:.80} in the ground truth of a code task", _RULE)
    return [_test(test, kind) for test in tests]


def _test(test: object, kind: str) -> Test:
    if kind == "call" and isinstance(test, str):
        return read_assert(test)
    if kind == "stdio" and isinstance(test, dict) and set(test) == {"input", "output"}:
        given, printed = test["input"], test["output"]
        if isinstance(given, str) and isinstance(printed, str):
            return Stdio(given, printed)
    raise _refused(f"the test {test!r:.200} of a code task of kind {kind}", _RULE)


def _written(test: Test) -> str | dict[str, str]:
    return {"input": test.input, "output": test.output} if isinstance(test, Stdio) else test.text()


def _refused(value: str, rule: str) -> DataError:
    return DataError(value, rule=rule, fix=_FIX)
