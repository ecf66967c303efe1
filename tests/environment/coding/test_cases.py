"""Parsing of tests that an agent wrote. Any text is read as data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.environment.coding.prompts import ShortCase, TaggedCase, WrittenCase
from verl_mas.environment.execution.executor import Call
from verl_mas.environment.execution.problem import Problem, Returns, Stdio
from verl_mas.errors import DataError
from verl_mas.workflow import Malformed

FUNCTION = Problem([Returns(Call("f", [1]), 2)])
CODECS = [TaggedCase(), ShortCase()]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@given(value=st.builds(WrittenCase, st.text(min_size=1), st.text(min_size=1)), text=st.text())
def test_a_rendered_case_is_parsed_again_and_any_text_can_be_parsed(codec, value, text):
    try:
        assert codec.parse(codec.render(value)) == value
    except DataError:  # the value contains the marks of the format
        assert set(f"{value.input}{value.output}") & set("<>") or value != WrittenCase(
            value.input.strip(), value.output.strip()
        )
    codec.parse(text)


@pytest.mark.parametrize("text", ["<input>1</input>", "<output>1</output>", "<input></input><output>1</output>"])
def test_a_test_without_one_of_its_parts_is_malformed(text):
    assert isinstance(TaggedCase().parse(text), Malformed)


@pytest.mark.parametrize("text", ["1 2", "1>", ">2", "1>2>3", ""])
def test_a_short_test_has_one_mark_and_two_parts(text):
    assert isinstance(ShortCase().parse(text), Malformed)


def test_a_test_of_a_program_is_its_input_and_its_output_and_of_a_function_json():
    assert WrittenCase("1 2", "3").test(Problem([Stdio("0", "0")])) == Stdio("1 2\n", "3")
    assert WrittenCase('[1, "a", {"b": null}]', "[true, 1.5]").test(FUNCTION) == Returns(
        Call("f", [1, "a", {"b": None}]), [True, 1.5]
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("1, 2", "3"),
        ("3", "3"),
        ("[NaN]", "1"),
        ("[1]", "1e999"),
        ("[" * 100_000 + "]" * 100_000, "1"),
        ("[" * 60 + "]" * 60, "1"),
        ('["\\ud800"]', "1"),
        ("[1]", '{"a":' * 60 + "1" + "}" * 60),
    ],
)
def test_a_value_that_is_not_json_or_cannot_reach_the_executor_is_malformed(arguments, expected):
    assert isinstance(WrittenCase(arguments, expected).test(FUNCTION), Malformed)


def test_a_test_of_the_problem_can_be_shown():
    assert WrittenCase.of(Stdio("1 2\n", "3\n")) == WrittenCase("1 2", "3")
    assert WrittenCase.of(Returns(Call("f", [1, {2}], {"k": "a"}), (3,))) == WrittenCase("1, {2}, k='a'", "(3,)")
