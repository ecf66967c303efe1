"""The ground truth of a code task: written, read, and refused with the reason. Its tests: the comparison of outputs and
values, the parsing of asserts, and verdicts from the answers of an executor."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.environment.execution import problem
from verl_mas.environment.execution.executor import Answer, Call, Limits, Result, Status
from verl_mas.environment.execution.problem import Problem, Returns, Stdio, Verdict, same_output, same_value
from verl_mas.errors import DataError

ADD = Stdio("1 2", "3")
TEXT = '{"kind": "stdio", "tests": [{"input": "1 2", "output": "3"}]}'

outputs = st.text().filter(lambda text: text.split())
programs = st.none() | st.text().filter(lambda text: text.strip())
seconds = st.none() | st.floats(0.1, 60)
literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)
names = st.sampled_from(["f", "Solution.solve"])
calls = st.builds(Call, names, st.lists(literals, max_size=3), st.dictionaries(st.sampled_from("abc"), literals))


@given(st.lists(st.builds(Stdio, st.text(), outputs), min_size=1), programs, seconds)
@settings(deadline=None)
def test_a_problem_of_inputs_and_outputs_is_read_as_it_was_written(tests, golden, limit):
    made = Problem(tests, tests[:1], golden, limit)
    assert made.kind == "stdio" and Problem.read(made.text()) == made


@given(st.lists(st.builds(Returns, calls, literals), min_size=1))
@settings(deadline=None, max_examples=30)
def test_a_problem_of_calls_is_read_as_it_was_written(tests):
    made = Problem(tests)
    assert made.kind == "call" and repr(Problem.read(made.text())) == repr(made)


def test_fields_may_be_missing_and_a_time_limit_replaces_the_teams():
    assert Problem.read(TEXT) == Problem([ADD], (), None, None)
    assert Problem([ADD]).limits(Limits(cpu_s=2, memory_mb=99)) == Limits(cpu_s=2, memory_mb=99)
    assert Problem([ADD], time_limit_s=5).limits(Limits(cpu_s=2, memory_mb=99)) == Limits(cpu_s=5, memory_mb=99)


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(TEXT), **fields})


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        (None, "the ground truth None of a code task"),
        ("[" * 100_000, "maximum recursion"),
        ("{}", "has no kind"),
        (changed(kind="assert"), "kind='assert'"),
        (changed(tests=[]), "without tests"),
        (changed(tests=[{"input": "1 2", "output": 3}]), r"tests\[0\]="),
        (changed(tests=[{"input": "1 2", "output": "3", "weight": 1}]), "weight"),
        (changed(tests=[{"input": "1 2", "output": " \n"}]), "expects no output"),
        (changed(tests=["assert f(1) == 2"]), "kind stdio with the test 'assert f"),
        (changed(kind="call"), "kind call with the test"),
        (changed(kind="call", tests=["assert f(x) == 2"]), "ValueError: x is not a literal"),
        (changed(golden=""), "empty golden program"),
        (changed(time_limit_s=0), "time_limit_s 0"),
        (changed(solution="x"), "ground_truth.solution is not a setting"),
    ],
)
def test_an_invalid_ground_truth_is_refused_with_the_fix(truth, says):
    with pytest.raises(DataError, match=says) as refused:
        Problem.read(truth)
    assert "verl-mas data code" in refused.value.fix or "assert" in refused.value.rule


def test_tests_of_both_kinds_and_a_value_without_a_literal_are_refused():
    with pytest.raises(DataError, match="both kinds"):
        Problem([ADD], [Returns(Call("f"), 1)])
    with pytest.raises(DataError, match="== nan"):
        Problem([Returns(Call("f"), math.nan)]).text()


LIMITS = Limits()


@dataclass
class Scripted:
    """An executor with a scripted result per input and a scripted answer per function. It records inputs and calls."""

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
    return asyncio.run(problem.run_tests(executor, "program", tests, LIMITS))


SAME_OUTPUT = [
    ("  1\t2 \r\n\n3", "1 2\n3\n"),
    ("0.0", "1e-7"),
    ("2", "2.0"),
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
    ([1, 2], [1, 2, 3]),
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


def test_an_assert_may_have_a_message_and_its_literals_may_be_infinite_or_empty_sets():
    assert problem.read_assert("assert f() == 1, 'it prints ' + str(f())") == Returns(Call("f", []), 1)
    assert problem.read_assert(" assert (f(-1j) == [1e999, set()])\n") == Returns(Call("f", [-1j]), [math.inf, set()])


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
        "assert f('\ud800') == 2",
        "assert f(1) == " + "[" * 1000 + "]" * 1000,
        "assert f(1) == " + "-" * 100_000 + "1",
    ],
)
def test_any_other_assert_is_refused_with_the_form(text):
    with pytest.raises(DataError, match="the test") as refused:
        problem.read_assert(text)
    assert "assert f(arguments) == value" in refused.value.rule


def test_a_verdict_needs_a_program_that_ends_well_and_the_output():
    ends = Result(Status.OK, "2\n", seconds=0.5), Result(Status.OK, "4\n"), Result(Status.ERROR, "3\n", "Error: no\n")
    executor = Scripted(dict(zip("1234", [*ends, Result(Status.TIMED_OUT, "3\n")], strict=True)))
    right, wrong, failed, slow = verdicts(executor, Stdio("1", "2"), *(Stdio(text, "3") for text in "234"))
    assert right == Verdict(True, Status.OK, "2\n", None, 0.5)
    assert not wrong.passed and wrong.status is Status.OK and wrong.got == "4\n"
    assert not failed.passed and failed.error == "error: Error: no"
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
