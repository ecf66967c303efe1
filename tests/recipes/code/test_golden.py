"""Which tests of a task are hidden, and which are public examples."""

import code_rows as rows
import pytest

from verl_mas.config.hydra.recipe.code.formats import Draft, Drop, Dropped
from verl_mas.config.hydra.recipe.code.golden import ExamplesFrom, choose
from verl_mas.environment.execution.executor import Call
from verl_mas.environment.execution.problem import Returns, Stdio

SUMS = [Stdio(*pair) for pair in rows.SUMS]


def of_length(length: int, number: int = 0) -> Stdio:
    return Stdio(f"{number} ".ljust(length - 1, "x"), "1")


def chosen(tests, question="q", public=(), most=10, seed="0"):
    return choose(Draft(question, tests, public), most, 20_000, seed)


def test_public_tests_of_the_set_are_the_examples_and_are_not_hidden():
    choice = chosen(SUMS, public=SUMS[:1])
    assert choice.examples == SUMS[:1] and set(choice.tests) == set(SUMS[1:])
    assert choice.examples_from is ExamplesFrom.SET and choice.left_out == 0


@pytest.mark.parametrize(
    "statement",
    [
        rows.STATEMENT,
        "Sum.\n-----Sample Input-----\n1 2\n\n-----Sample Output-----\n3\n",
        "Sum.\n\nSample Input 1:\n1 2\nSample Output 1:\n3\nExplanation",
        "Sum.\n\n**Input**\n```\n1 2\n```\n**Output**\n```\n3\n```",
        "Sum.\n\nInput\n\n1 2\n\nOutput\n\n3\n\nInput\n\n4 4\n\nOutput\n\n8",
        "Sum.\n\nSAMPLE INPUT\n1   2\nEXPECTED OUTPUT\n3",
    ],
)
def test_examples_are_found_under_the_headings_of_several_sets(statement):
    choice = chosen(SUMS, statement)
    assert choice.examples == SUMS[:1] and choice.examples_from is ExamplesFrom.STATEMENT


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
    choice = chosen(SUMS, statement)
    assert choice.examples == SUMS[:1] and choice.examples_from is ExamplesFrom.FIRST_TEST


# A call that returns nothing is a test, too.
@pytest.mark.parametrize("test", [SUMS[0], Returns(Call("f", [1]), None)])
def test_a_single_test_is_example_and_hidden_test(test):
    choice = chosen([test])
    assert list(choice.tests) == list(choice.examples) == [test]


def test_short_tests_come_first_and_the_seed_draws_among_those_of_similar_length():
    short, long = [of_length(40, number) for number in range(30)], [of_length(900, number) for number in range(5)]
    first, again, other, most = (
        chosen([*long, *short], public=long[:1], most=count, seed=seed)
        for count, seed in ((10, "1"), (10, "1"), (10, "2"), (32, "1"))
    )
    assert first.tests == again.tests != other.tests and {*first.tests, *other.tests} <= set(short) < set(most.tests)
    assert first.left_out == 35 - 11


LARGE, SILENT = of_length(10 << 20), Stdio("1", " \n")


def test_equal_tests_are_one_and_those_of_ten_megabytes_are_left_out():
    choice = chosen([LARGE, *SUMS, *SUMS], public=SUMS[:1])
    assert set(choice.tests) == set(SUMS[1:]) and len(choice.tests) == 2 and choice.left_out == 1


@pytest.mark.parametrize(
    ("test", "reason"), [(LARGE, Drop.LONG_TESTS), (SILENT, Drop.NO_TESTS)], ids=["long", "silent"]
)
def test_a_task_with_only_long_or_silent_tests_is_dropped(test, reason):
    with pytest.raises(Dropped) as caught:
        chosen([test])
    assert caught.value.reason is reason
