"""Which tests of a task are hidden, and which are public examples."""

from __future__ import annotations

import code_rows as rows
import pytest

from verl_mas.data.code_formats import Draft, Drop, Dropped
from verl_mas.data.code_golden import ExamplesFrom, choose
from verl_mas.execution.limits import Call
from verl_mas.execution.unit_tests import Returns, Stdio

SUMS = [Stdio(*pair) for pair in rows.SUMS]


def of_length(length: int, number: int = 0) -> Stdio:
    return Stdio(f"{number} ".ljust(length - 1, "x"), "1")


def chosen(draft, most=10, longest=20_000, seed="0"):
    return choose(draft, most, longest, seed)


def test_public_tests_of_the_set_are_the_examples_and_are_not_hidden():
    found = chosen(Draft("q", SUMS, public=SUMS[:1]))
    assert found.examples == SUMS[:1] and set(found.tests) == set(SUMS[1:])
    assert found.examples_from is ExamplesFrom.SET and found.left_out == 0


def test_tests_that_the_statement_shows_are_the_examples():
    found = chosen(Draft(rows.STATEMENT, SUMS))
    assert found.examples == SUMS[:1] and found.examples_from is ExamplesFrom.STATEMENT


@pytest.mark.parametrize(
    "statement",
    [
        "Sum.\n-----Sample Input-----\n1 2\n\n-----Sample Output-----\n3\n",
        "Sum.\n\nSample Input 1:\n1 2\nSample Output 1:\n3\nExplanation",
        "Sum.\n\n**Input**\n```\n1 2\n```\n**Output**\n```\n3\n```",
        "Sum.\n\nInput\n\n1 2\n\nOutput\n\n3\n\nInput\n\n4 4\n\nOutput\n\n8",
        "Sum.\n\nSAMPLE INPUT\n1   2\nEXPECTED OUTPUT\n3",
    ],
)
def test_examples_are_found_under_the_headings_of_several_sets(statement):
    assert chosen(Draft(statement, SUMS)).examples == SUMS[:1]


@pytest.mark.parametrize(
    "statement",
    [
        "Add 1 2 to get 3.",
        "Input\n1 2\n4\nOutput\n3\n",
        "Input\n1 2\nOutput\n31",
        "Input\n11 2\nOutput\n3",
        "Output\n3\nInput\n1 2",
    ],
)
def test_a_statement_that_merely_has_the_numbers_shows_no_example(statement):
    found = chosen(Draft(statement, SUMS))
    assert found.examples == SUMS[:1] and found.examples_from is ExamplesFrom.FIRST_TEST


def test_a_single_test_is_example_and_hidden_test():
    found = chosen(Draft("q", SUMS[:1]))
    assert list(found.tests) == list(found.examples) == SUMS[:1]


def test_short_tests_come_first_and_the_seed_draws_among_those_of_similar_length():
    short, long = [of_length(40, number) for number in range(30)], [of_length(900, number) for number in range(5)]
    draft = Draft("q", [*long, *short], public=long[:1])
    first, again, other = (chosen(draft, most=10, seed=seed).tests for seed in ("1", "1", "2"))
    assert first == again != other and set(first) | set(other) <= set(short)
    assert set(chosen(draft, most=32).tests) > set(short)
    assert chosen(draft, most=10).left_out == 35 - 11


def test_tests_of_ten_megabytes_are_left_out_and_a_task_without_others_is_dropped():
    large = of_length(10 << 20)
    found = chosen(Draft("q", [large, *SUMS]))
    assert large not in found.tests and found.left_out == 1
    with pytest.raises(Dropped) as caught:
        chosen(Draft("q", [large]))
    assert caught.value.reason is Drop.LONG_TESTS


def test_equal_tests_are_one_and_tests_that_expect_no_output_are_none():
    assert len(chosen(Draft("q", [*SUMS, *SUMS], public=SUMS[:1])).tests) == 2
    with pytest.raises(Dropped) as caught:
        chosen(Draft("q", [Stdio("1", " \n")]))
    assert caught.value.reason is Drop.NO_TESTS


def test_a_call_that_returns_nothing_is_a_test():
    test = Returns(Call("f", [1]), None)
    assert list(chosen(Draft("q", [test])).tests) == [test]
