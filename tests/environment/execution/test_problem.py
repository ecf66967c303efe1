"""The ground truth of a code task: written, read, and refused with the reason."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.environment.execution.executor import Call, Limits
from verl_mas.environment.execution.problem import Problem, Returns, Stdio
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
    problem = Problem(tests, tests[:1], golden, limit)
    assert problem.kind == "stdio" and Problem.read(problem.text()) == problem


@given(st.lists(st.builds(Returns, calls, literals), min_size=1))
@settings(deadline=None, max_examples=30)
def test_a_problem_of_calls_is_read_as_it_was_written(tests):
    problem = Problem(tests)
    assert problem.kind == "call" and repr(Problem.read(problem.text())) == repr(problem)


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
        Problem([Returns(Call("f"), float("nan"))]).text()
