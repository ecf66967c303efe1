import time
from concurrent.futures import Future

import pytest

pytest.importorskip("math_verify")

import hostile_replies
from hypothesis import given, settings
from hypothesis import strategies as st
from latex2sympy2_extended import latex2sympy2

from verl_mas.environment.grading import math
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


OTHER_THAN_SEVEN = r"""
\neq 7 | \not= 7 | < 7 | > 7 | \le 7 | \sim 7 | 8=7 | 1=2=3=7 | = 7 | x == 7 | x := 7 | 2x = 14 | x \ne 7 | ≤ 7
\neg 7 | \approx 7 | 8 \equiv 7 | 8 \Rightarrow 7 | \therefore 7 | 8 \mod 7 | 8 % 7 | \phantom{7} | \underline{8} 7
7 \text{ or eight} | \text{not } 7 | 7 \text{ (wrong)} | \text{less than } 7 | 7\text{8} | 7_8 | 7_10 | 7 \cup 8
1 \\ 7 | \begin{cases}7\\8\end{cases} | 7 & 8 | 1 \boxed{7} | \boxed 7 | \fbox{7} | 7 \setminus 8 | 7\ldots | 7 ∧ 8
"""


def test_an_answer_that_says_more_than_a_value_is_not_that_value():
    answers = [text for line in OTHER_THAN_SEVEN.strip().splitlines() for text in line.split(" | ")]
    assert [answer for answer in answers if math.objection("7", answer) is None] == []


@pytest.mark.parametrize("truth", ["(1,2)", "1, 2", r"1 \text{ or } 2"])
@pytest.mark.parametrize("more", [r"\text{ or anything else}", r"\text{ or {x}}", r"\mbox{or 3}"])
def test_a_word_between_two_values_begins_no_other_text(truth, more):
    assert math.objection(truth, f"{truth} {more}") == "wrong"
    assert math.objection(truth, r"1 \text{ or } 2") is None is math.objection(truth, "1 or 2")


def test_an_odd_bar_separates_and_a_pair_of_bars_is_an_absolute_value():
    assert math.objection("7", "8 | 7") == "unreadable"
    assert math.objection("7", "|-7|") is None


USUAL_NOTATION = r"""
7 :: 7 \text{ cm} | 7 :: f(2) = 7 | 60 :: \angle ABC = 60^\circ | 7 :: \text{Area} = 7 | 7 :: x \in \{7\} | 7 :: \$7
7 :: 7_{10} | 12 :: 12\% | 1,2 :: x=1 \text{ or } x=2 | 1,2 :: 1 \text{ and } 2 | (1,2) :: (x, y) = (1, 2)
2x+1 :: y = 2x+1 | [0,1) :: 0 \le x < 1 | (-\infty,1)\cup(2,\infty) :: (-\infty,1) \cup (2,\infty) | x>3 :: (3,\infty)
\begin{pmatrix}1\\2\end{pmatrix} :: \begin{bmatrix}1\\2\end{bmatrix} | 101_2 :: 101_2 | \text{two} :: two
0.\overline{3} :: 0.\bar{3} | \left\lfloor x\right\rfloor :: \lfloor x \rfloor | \frac{\pi}{3} :: \pi/3 \text{ radians}
"""


def test_a_value_in_usual_notation_is_left_to_math_verify():
    pairs = [text.split(" :: ") for line in USUAL_NOTATION.strip().splitlines() for text in line.split(" | ")]
    assert len(pairs) == 21 and [pair for pair in pairs if math.objection(*pair) is not None] == []


OTHERS = r"""
\dfrac34 | \sqrt[3]{x^2+1} | x^2-(y+1)(y-1) | (-\infty, 2] \cup (3, 4) | a=1, b=2 | \sin(\frac{\pi}{3}) | \log_2 8
\int_0^1 x dx | \sum_{k=1}^{3} k | e^{i\pi} | \frac{1}{ | +*
"""
TEXTS = [text for pair in math.WARM_UP for text in pair] + ["", *OTHERS.strip().replace("\n", " | ").split(" | ")]


def parsed(text: str) -> str:
    try:
        return repr(latex2sympy2.latex2sympy(text, normalization_config=None))
    except Exception as error:  # noqa: BLE001  whatever latex2sympy raises
        return str(error)


def test_two_stages_read_what_the_full_context_reads(monkeypatch):
    math.parse_in_two_stages()
    math.parse_in_two_stages()
    both = list(map(parsed, TEXTS))
    (one_stage,) = latex2sympy2._Latex2Sympy.__bases__  # noqa: SLF001
    monkeypatch.setattr(latex2sympy2, "_Latex2Sympy", one_stage)
    assert one_stage.__name__ == "_Latex2Sympy" and both == list(map(parsed, TEXTS))
