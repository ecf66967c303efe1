import pytest

from verl_mas.environment.grading.math import objection

OTHER_THAN_SEVEN = r"""
\neq 7 | \not= 7 | < 7 | > 7 | \le 7 | \sim 7 | 8=7 | 1=2=3=7 | = 7 | x == 7 | x := 7 | 2x = 14 | x \ne 7 | ≤ 7
\neg 7 | \approx 7 | 8 \equiv 7 | 8 \Rightarrow 7 | \therefore 7 | 8 \mod 7 | 8 % 7 | \phantom{7} | \underline{8} 7
7 \text{ or eight} | \text{not } 7 | 7 \text{ (wrong)} | \text{less than } 7 | 7\text{8} | 7_8 | 7_10 | 7 \cup 8
1 \\ 7 | \begin{cases}7\\8\end{cases} | 7 & 8 | 1 \boxed{7} | \boxed 7 | \fbox{7} | 7 \setminus 8 | 7\ldots | 7 ∧ 8
"""


def test_an_answer_that_says_more_than_a_value_is_not_that_value() -> None:
    answers = [text for line in OTHER_THAN_SEVEN.strip().splitlines() for text in line.split(" | ")]
    assert [answer for answer in answers if objection("7", answer) is None] == []


@pytest.mark.parametrize("truth", ["(1,2)", "1, 2", r"1 \text{ or } 2"])
@pytest.mark.parametrize("more", [r"\text{ or anything else}", r"\text{ or {x}}", r"\mbox{or 3}"])
def test_a_word_between_two_values_begins_no_other_text(truth: str, more: str) -> None:
    assert objection(truth, f"{truth} {more}") == "wrong"
    assert objection(truth, r"1 \text{ or } 2") is None is objection(truth, "1 or 2")


def test_an_odd_bar_separates_and_a_pair_of_bars_is_an_absolute_value() -> None:
    assert objection("7", "8 | 7") == "unreadable"
    assert objection("7", "|-7|") is None


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("7", r"7 \text{ cm}"),
        ("7", r"f(2) = 7"),
        ("60", r"\angle ABC = 60^\circ"),
        ("7", r"\text{Area} = 7"),
        ("7", r"x \in \{7\}"),
        ("7", r"\$7"),
        ("7", r"7_{10}"),
        ("12", r"12\%"),
        ("1,2", r"x=1 \text{ or } x=2"),
        ("1,2", r"1 \text{ and } 2"),
        ("(1,2)", "(x, y) = (1, 2)"),
        ("2x+1", "y = 2x+1"),
        ("[0,1)", r"0 \le x < 1"),
        (r"(-\infty,1)\cup(2,\infty)", r"(-\infty,1) \cup (2,\infty)"),
        ("x>3", r"(3,\infty)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
        ("101_2", "101_2"),
        (r"\text{two}", "two"),
        (r"0.\overline{3}", r"0.\bar{3}"),
        (r"\left\lfloor x\right\rfloor", r"\lfloor x \rfloor"),
        (r"\frac{\pi}{3}", r"\pi/3 \text{ radians}"),
    ],
)
def test_a_value_in_usual_notation_is_left_to_math_verify(truth: str, answer: str) -> None:
    assert objection(truth, answer) is None
