import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl_mas.environment.execution.contained import harness
from verl_mas.environment.execution.contained.harness import MAX_BYTES, MAX_DEPTH, NotPlain, dumps, loads, read_answers

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**70, max_value=2**90)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
plain = st.recursive(
    hashable | st.sets(hashable, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(hashable, inner, max_size=4),
    max_leaves=20,
)


@given(plain)
@example([math.inf, -math.inf, math.nan, 10**400, -(2**63), True, 1, 1.0])
@settings(max_examples=200, deadline=None)
def test_a_plain_value_comes_back_as_it_was(value):
    back = loads(dumps(value))
    # A value with nan is not equal to itself, and the order in a set may change.
    assert repr(back) == repr(value) or (type(back) is type(value) and back == value)


class Number(int): ...


@pytest.mark.parametrize("value", [Number(3), object(), {1: Number(1)}, range(3)])
def test_an_instance_of_a_subclass_is_not_a_plain_value(value):
    with pytest.raises(NotPlain):
        dumps(value)


def nested(levels: int) -> object:
    value: object = {}
    for _ in range(levels):
        value = {1: value}
    return value


def test_levels_are_bounded_on_both_sides():
    assert loads(dumps(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    cyclic: list[object] = []
    cyclic.append(cyclic)
    for deep in (nested(MAX_DEPTH + 1), cyclic):
        with pytest.raises(NotPlain, match="levels"):
            dumps(deep)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 90_000 + "]" * 90_000,
        '"\\"[' * 5,
        '["' + "\\" * 99_999,
        "9" * 500_000,
        '{"int": "' + "9" * 900_000 + 'z"}',
        # Python could read this number, but would refuse to print it.
        '{"int": "' + "9" * 3_800 + '"}',
        '{"set": [[]]}',
        '{"set": [' + ",".join(f'{{"int": "{(2**61 - 1) * i:#x}"}}' for i in range(2**10, 30_000)) + "]}",
        '{"dict": [[1]]}',
        '{"complex": ["a", 1.0]}',
        '{"bytes": "zz"}',
        '{"object": []}',
        '{"tuple": [], "list": []}',
        "",
        "1" + " " * MAX_BYTES,
        "\ud800",
    ],
    ids=range(16),
)
def test_text_that_no_harness_writes_is_refused_quickly(text):
    start = time.process_time()
    with pytest.raises(NotPlain):
        loads(text)
    assert time.process_time() - start < 1


def test_a_program_that_fails_answers_no_call():
    lines: list[str] = []
    harness.run_calls("1 / 0", harness.dump_calls([("f", [], {})]), lines.append)
    assert read_answers(f"{lines[0]}\n", 2, "missing") == [(None, "ZeroDivisionError: division by zero")] * 2


def test_calls_without_an_answer_have_the_given_error():
    written = '{"value": 1}\n\n[1]\n{"value": [[1'
    answers = read_answers(written, 5, "timed out")
    assert answers[0] == (1, None) and answers[3:] == [(None, "timed out")] * 2
    assert all(value is None and error is not None for value, error in answers[1:])
    assert read_answers('{"value": 1}\n' * 9, 2, "missing") == [(1, None)] * 2


def test_half_a_character_reaches_no_file_and_no_prompt():
    value, in_dict, error = (r'{"value": ["\ud800"]}', r'{"value": {"dict": [["\ud800", 1]]}}', r'{"error": "\ud800"}')
    assert read_answers(f"{value}\n{in_dict}\n{error}\n", 3, "missing") == [
        (None, "not a plain value: a text that UTF-8 does not have"),
        (None, "not a plain value: a text that UTF-8 does not have"),
        (None, r"\ud800"),
    ]
