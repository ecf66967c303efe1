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


USUAL_NOTATION = r"""
7 :: 7 \text{ cm} | 7 :: f(2) = 7 | 60 :: \angle ABC = 60^\circ | 7 :: \text{Area} = 7 | 7 :: x \in \{7\} | 7 :: \$7
7 :: 7_{10} | 12 :: 12\% | 1,2 :: x=1 \text{ or } x=2 | 1,2 :: 1 \text{ and } 2 | (1,2) :: (x, y) = (1, 2)
2x+1 :: y = 2x+1 | [0,1) :: 0 \le x < 1 | (-\infty,1)\cup(2,\infty) :: (-\infty,1) \cup (2,\infty) | x>3 :: (3,\infty)
\begin{pmatrix}1\\2\end{pmatrix} :: \begin{bmatrix}1\\2\end{bmatrix} | 101_2 :: 101_2 | \text{two} :: two
0.\overline{3} :: 0.\bar{3} | \left\lfloor x\right\rfloor :: \lfloor x \rfloor | \frac{\pi}{3} :: \pi/3 \text{ radians}
"""


def test_a_value_in_usual_notation_is_left_to_math_verify() -> None:
    pairs = [text.split(" :: ") for line in USUAL_NOTATION.strip().splitlines() for text in line.split(" | ")]
    assert len(pairs) == 21 and [pair for pair in pairs if objection(*pair) is not None] == []
