import time
from concurrent.futures import Future

import pytest

pytest.importorskip("math_verify")

import hostile_replies
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.environment.grading.math import MAX_CHARS, AnswerChecker, Grade, grade_with_sympy, plain_number
from verl_mas.environment.grading.process_pool import BoundedPool
from verl_mas.errors import DataError


@pytest.fixture(scope="module")
def checker():
    checker = AnswerChecker(workers=2, limit_s=1.0)
    checker.grade("\\sqrt{8}", "2\\sqrt{2}")  # so that its processes have started
    yield checker
    checker.close()


EQUAL = {
    "42": ["42", "x = 42", "$42$.", " 42\\, "],
    "1000": ["1,000"],
    "0.5": ["\\frac{1}{2}"],
    "\\sqrt{8}": ["2\\sqrt{2}"],
    "x^2+1": ["1+x^2"],
    "[0,1)": ["[0, 1)"],
    "\\text{Evelyn}": ["Evelyn"],
}
OTHER = {"42": "41", "0.5": "\\frac{1}{3}", "[0,1)": "[0,1]", "(1,2)": "(2,1)", "x": "y", "7": "-7"}


def test_equal_answers_are_correct_and_others_are_wrong(checker):
    for truth, answers in EQUAL.items():
        assert [checker.grade(truth, answer) for answer in answers] == [Grade.CORRECT] * len(answers), truth
    assert {checker.grade(*pair) for pair in OTHER.items()} == {Grade.WRONG}


@pytest.mark.parametrize("answer", [None, "", "$.$", "4" * (MAX_CHARS + 1), "{" * 10_000_000, "4" + " " * 10_000_000])
def test_a_missing_and_an_overlong_answer_are_unreadable_at_once(checker, answer):
    started = time.monotonic()
    assert checker.grade("42", answer) is Grade.UNREADABLE
    assert time.monotonic() - started < 0.1


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "(" * 400 + "1" + ")" * 400, "\\sum_{k=1}^{10^{12}} k^{1/3}"])
def test_a_hostile_answer_costs_one_bounded_check_and_earns_nothing(checker, answer):
    started = time.monotonic()
    assert checker.grade("42", answer) is not Grade.CORRECT
    assert time.monotonic() - started < checker.limit_s + 1
    assert checker.grade("0.5", "\\frac{1}{2}") is Grade.CORRECT


CORRECT, TIMED_OUT, CRASHED = "correct", "timed_out", "crashed"


# A grade is cached, and so is a second timeout. A crash and a first timeout may be due to the machine.
@pytest.mark.parametrize(
    ("results", "grades"),
    [
        ([CORRECT, CRASHED], [CORRECT, CORRECT]),
        ([CRASHED, CORRECT], [CRASHED, CORRECT]),
        ([TIMED_OUT, CORRECT], [TIMED_OUT, CORRECT]),
        ([TIMED_OUT, TIMED_OUT, CORRECT], [TIMED_OUT] * 3),
    ],
)
def test_a_grade_is_cached_and_a_failed_check_is_repeated(monkeypatch, results, grades):
    def submit(pool, *pair):
        done = Future()
        done.set_result(results.pop(0))
        return done

    monkeypatch.setattr(BoundedPool, "submit", submit)
    checker = AnswerChecker(workers=1)
    assert [checker.grade("\\frac{1}{7}", "5/35").value for _ in grades] == grades
    checker.close()


def test_no_hostile_reply_is_read_as_success(checker):
    reader = hostile_replies.Reader(checker)
    assert [item for item in hostile_replies.hostile(4_000, seed=1) if reader.succeeds(item)] == []


@pytest.mark.parametrize("truth", [None, "", " ", "$", "1" + " " * 10_000_000 + "2"], ids=lambda truth: repr(truth)[:9])
def test_an_empty_or_overlong_ground_truth_is_refused_at_once(checker, truth):
    started = time.monotonic()
    with pytest.raises(DataError, match="ground truth"):
        checker.grade(truth, "42")
    assert time.monotonic() - started < 0.1


numbers = st.decimals(min_value=-(10**9), max_value=10**9, places=3).map(str) | st.integers(-(10**9), 10**9).map(
    lambda n: f"{n:,}"
)


# A busy machine must not fail the test.
@settings(deadline=None)
@given(numbers, numbers)
def test_the_comparison_of_plain_numbers_agrees_with_sympy(truth, answer):
    assert plain_number(truth) is not None
    short = Grade.CORRECT if plain_number(truth) == plain_number(answer) else Grade.WRONG
    assert grade_with_sympy(truth, answer) == short.value
