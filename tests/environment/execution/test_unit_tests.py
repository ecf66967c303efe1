"""Comparison of outputs and values, parsing of asserts, and verdicts from the answers of an executor."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.environment.execution.executor import Answer, Call, Limits, Result, Status
from verl_mas.environment.execution.problem import (
    Returns,
    Stdio,
    Verdict,
    read_assert,
    run_tests,
    same_output,
    same_value,
)
from verl_mas.errors import DataError

LIMITS = Limits()


@dataclass
class Scripted:
    """An executor with a result per input and an answer per function. It remembers its inputs and calls."""

    results: dict[str, Result] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    given: list[object] = field(default_factory=list)

    async def execute(self, program: str, stdin: str = "", limits: Limits = LIMITS) -> Result:
        self.given.append(stdin)
        return self.results[stdin]

    async def call(self, program: str, calls: Sequence[Call], limits: Limits = LIMITS) -> list[Answer]:
        self.given += calls
        return [self.answers[call.function] for call in calls]


def verdicts(executor: Scripted, *tests: Stdio | Returns) -> list[Verdict]:
    return asyncio.run(run_tests(executor, "program", tests, LIMITS))


SAME_OUTPUT = [
    ("  1\t2 \r\n\n3", "1 2\n3\n"),
    ("0.3333333", "0.33333333"),
    ("0.0", "1e-7"),
    ("2", "2.0"),
    ("1e3", "1000.0"),
    ("nan", "nan"),
    ("1e999", "1e999"),
]
OTHER_OUTPUT = [
    ("", "3"),
    ("2.0", "2"),
    ("1000000000000000001", "1000000000000000000"),
    ("+3", "3"),
    ("1e999", "1.0"),
    ("-1e999", "1e999"),
    ("1_0", "10.0"),
    ("\u0661", "1.0"),
    ("1.0" + "0" * 500, "1.0"),
]


@pytest.mark.parametrize(("pairs", "same"), [(SAME_OUTPUT, True), (OTHER_OUTPUT, False)])
def test_outputs_are_compared_by_their_tokens(pairs, same):
    assert [pair for pair in pairs if same_output(*pair) is not same] == []


@given(st.floats(-1e300, 1e300), st.floats(-1, 1))
@settings(deadline=None)
def test_a_float_may_differ_by_a_millionth_and_no_more(number, share):
    allowed = 1e-6 * max(1.0, abs(number))
    assert same_output(repr(number + 0.9 * share * allowed), repr(number))
    assert not same_output(repr(number + math.copysign(1.5 * allowed, share)), repr(number))


SAME_VALUE = [
    ([1, 2], (1, 2)),
    (0.3333333, 0.33333333),
    (2, 2.0),
    ({"a": (1,)}, {"a": [1]}),
    ({1: 2.0000001}, {1: 2.0}),
    ({1, 2}, frozenset([2, 1])),
    ({(1, True)}, {(1, True)}),
    ({frozenset([1])}, {frozenset([1.0])}),
    (1j, 1.0000001j),
    (math.inf, math.inf),
]
OTHER_VALUE = [
    (1, True),
    ("1", 1),
    ("ab", ["a", "b"]),
    ([1, 2], [1, 2, 3]),
    ([1, 2], {1, 2}),
    ({1: True}, {1: 1}),
    ({True}, {1}),
    ({(1, True)}, {(1, 1)}),
    ({frozenset([True])}, {frozenset([1])}),
    ({"a": 1, "b": 2}, {"a": 1}),
    (10**400, 1.0),
    (math.nan, math.nan),
    (1.0, math.inf),
]


@pytest.mark.parametrize(("pairs", "same"), [(SAME_VALUE, True), (OTHER_VALUE, False)])
def test_values_are_compared_by_their_types(pairs, same):
    assert [pair for pair in pairs if same_value(*pair) is not same] == []


@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("assert f() == 1, 'it prints ' + str(f())", Returns(Call("f", []), 1)),
        (" assert f(-1, 'a') == [1, (2,), {3: None}]\n", Returns(Call("f", [-1, "a"]), [1, (2,), {3: None}])),
        ("assert (f(k=[1]) == {1})", Returns(Call("f", [], {"k": [1]}), {1})),
        ("assert Solution().f(1) == 1e999", Returns(Call("Solution.f", [1]), math.inf)),
        ("assert f(1 + 2j) == set()", Returns(Call("f", [1 + 2j]), set())),
    ],
)
def test_an_assert_of_literals_is_a_call(text, test):
    assert read_assert(text) == test


@pytest.mark.parametrize(
    "text",
    [
        "",
        "assert f(1) != 2",
        "assert f(1) == g(2)",
        "assert f(*[1]) == 2",
        "assert f(**{'a': 1}) == 2",
        "assert f(1) == 2; assert f(2) == 3",
        "assert a.b.f(1) == 2",
        "assert f(1 == 2",
        "assert f(1) == {[]}",
        "assert f('\ud800') == 2",
        "assert f(1) == " + "[" * 1000 + "]" * 1000,
        "assert f(1) == " + "-" * 100_000 + "1",
        "assert f(1) == " + "9" * 10_000,
    ],
)
def test_any_other_assert_is_refused_with_the_form(text):
    with pytest.raises(DataError, match="the test") as refused:
        read_assert(text)
    assert "assert f(arguments) == value" in refused.value.rule


def test_a_verdict_needs_a_program_that_ends_well_and_the_output():
    executor = Scripted(
        {
            "1": Result(Status.OK, "2\n", seconds=0.5),
            "2": Result(Status.OK, "4\n"),
            "3": Result(Status.ERROR, "3\n", "ZeroDivisionError: no\n"),
            "4": Result(Status.TIMED_OUT, "3\n"),
        }
    )
    right, wrong, failed, slow = verdicts(executor, Stdio("1", "2"), *(Stdio(text, "3") for text in "234"))
    assert right == Verdict(True, Status.OK, "2\n", None, 0.5)
    assert not wrong.passed and wrong.status is Status.OK and wrong.got == "4\n"
    assert not failed.passed and failed.error == "error: ZeroDivisionError: no"
    assert not slow.passed and slow.status is Status.TIMED_OUT


def test_a_call_passes_with_its_value_and_fails_with_its_error():
    executor = Scripted(answers={"f": Answer((1, 2)), "g": Answer(error="NameError: g"), "h": Answer(None)})
    right, wrong, failed, nothing = verdicts(
        executor, *(Returns(Call(name), value) for name, value in [("f", [1, 2]), ("f", 3), ("g", None), ("h", None)])
    )
    assert right.passed and right.got == (1, 2) and not wrong.passed
    assert not failed.passed and failed.error == "NameError: g" and failed.status is Status.ERROR
    assert nothing.passed


def test_equal_inputs_and_equal_calls_run_once_and_verdicts_keep_the_order():
    executor = Scripted({"1": Result(Status.OK, "1"), "2": Result(Status.OK, "2")}, {"f": Answer(1)})
    tests = [Stdio("2", "2"), Returns(Call("f", [1]), 1), Stdio("1", "2"), Stdio("2", "3"), Returns(Call("f", [1]), 2)]
    assert [verdict.passed for verdict in verdicts(executor, *tests)] == [True, True, False, False, False]
    # The executor gets inputs and calls, and nothing that is expected.
    assert sorted(map(repr, executor.given)) == ["'1'", "'2'", repr(Call("f", [1]))]
    calls = Scripted(answers={"f": Answer(1)})
    verdicts(calls, Returns(Call("f", [1]), 1), Returns(Call("f", [True]), 1), Returns(Call("f", [1.0]), 1))
    assert len(calls.given) == 3
