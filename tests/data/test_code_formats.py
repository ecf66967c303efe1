"""Rows in the public formats, and rows of one's own, as drafts; nothing in them is evaluated."""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64encode

import code_rows as rows
import pytest

from verl_mas.data.code_formats import Drop, Dropped, format_of, read
from verl_mas.errors import DataError
from verl_mas.execution.limits import Call
from verl_mas.execution.unit_tests import Returns, Stdio

SUMS = [Stdio(*pair) for pair in rows.SUMS]


def draft(row):
    return read(row, 3, "set", format_of(row, "set"))


def dropped(row) -> Drop:
    with pytest.raises(Dropped) as caught:
        draft(row)
    return caught.value.reason


def test_apps_has_its_tests_and_solutions_as_json_texts():
    found = draft(rows.apps())
    assert found.tests == SUMS and found.golden == [rows.SUM] and not found.public


def test_lists_of_lines_are_read_as_texts():
    assert draft(rows.apps(tests=[(["1 2", "3 4"], ["3", "7"])])).tests == [Stdio("1 2\n3 4", "3\n7")]


@pytest.mark.parametrize("empty", ["", " ", None, "{}", "null", '{"other": 1}'])
def test_a_public_row_without_tests_is_a_draft_without_tests(empty):
    assert draft(rows.apps(input_output=empty)).tests == []


@pytest.mark.parametrize("empty", ["", None, "[]"])
def test_a_row_without_solutions_has_no_golden_programs(empty):
    assert draft(rows.apps(solutions=()) | {"solutions": empty}).golden == []


def test_a_function_of_leetcode_is_a_method_and_the_question_shows_its_starter_code():
    starter = "class Solution:\n    def twice(self, values: List[int]) -> List[int]:"
    found = draft(rows.apps_function("twice", [[[1, 2]]], [[2, 4]], [rows.TWICE], starter))
    assert found.tests == [Returns(Call("Solution.twice", [[1, 2]]), [2, 4])] and not found.wrapped
    assert found.question.endswith(f"```python\n{starter}\n```")


def test_a_function_without_starter_code_is_named_in_the_question():
    found = draft(rows.apps_function("double", [[1], [2]], [[2], [4]], ["def double(x): return 2 * x"]))
    assert found.question.endswith("Write the function `double`.") and found.wrapped
    assert found.tests[0] == Returns(Call("double", [1]), [2])


def test_texts_that_a_function_takes_and_returns_stay_texts():
    found = draft(rows.apps_function("spin", [["Hey"], ["3"]], ["yeH", "3"], ["def spin(s): return s[::-1]"]))
    assert found.tests == [Returns(Call("spin", ["Hey"]), "yeH"), Returns(Call("spin", ["3"]), "3")]


def test_code_contests_keeps_python_3_solutions_and_tells_public_tests_apart():
    found = draft(rows.code_contests(solutions=[(1, "print 1"), (3, rows.SUM), (2, "int main(){}")]))
    assert found.golden == [rows.SUM] and found.public == SUMS[:1] and found.tests == SUMS


def test_a_contest_task_that_reads_a_file_is_dropped():
    assert dropped(rows.code_contests(input_file="input.txt")) is Drop.FILE_INPUT


@pytest.mark.parametrize("pack", [True, False])
def test_livecodebench_has_hidden_tests_as_json_or_packed(pack):
    found = draft(rows.livecodebench(pack=pack))
    assert found.tests == SUMS and found.public == SUMS[:1] and not found.golden


def test_a_function_of_livecodebench_takes_one_json_value_per_line():
    starter = "class Solution:\n    def add(self, a: List[int], b: int) -> List[int]:\n        "
    found = draft(rows.livecodebench([("[1, 2]\n3", "[4, 5]")], [("[]\n0", "[]")], "add", starter))
    assert found.tests == [
        Returns(Call("Solution.add", [[1, 2], 3]), [4, 5]),
        Returns(Call("Solution.add", [[], 0]), []),
    ]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/verl_mas_hostile_pickle",)


@pytest.mark.parametrize(
    "hidden",
    [
        rows.packed(Hostile()),
        rows.packed([1]),
        rows.packed("no json"),
        b64encode(zlib.compress(b"")).decode(),
        b64encode(zlib.compress(b"(") + b"x")[:-4].decode(),
        b64encode(b"no zlib").decode(),
        "no base64!",
        "",
    ],
    ids=["class", "list of numbers", "text", "empty", "truncated", "bytes", "characters", "nothing"],
)
def test_hidden_tests_that_are_no_packed_text_are_refused_without_running_anything(hidden):
    if hidden:
        assert dropped(rows.livecodebench(private_test_cases=hidden)) is Drop.UNREADABLE_TESTS
    else:
        assert draft(rows.livecodebench(private_test_cases=hidden)).tests == SUMS[:1]
    assert not os.path.exists("/tmp/verl_mas_hostile_pickle")


def test_hidden_tests_that_unpack_to_more_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr("verl_mas.data.code_formats.UNPACKED_BYTES", 1_000)
    bomb = rows.packed("x" * 1_000_000)
    assert dropped(rows.livecodebench(private_test_cases=bomb)) is Drop.UNREADABLE_TESTS


def test_deepcoder_has_tests_in_both_of_its_forms():
    listed = [{"type": "stdin_stdout", "input": given, "output": printed} for given, printed in rows.SUMS]
    assert draft(rows.deepcoder(listed)).tests == SUMS
    columns = {"inputs": [given for given, _ in rows.SUMS], "outputs": [printed for _, printed in rows.SUMS]}
    assert draft(rows.deepcoder(columns)).tests == SUMS
    call = [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}]
    assert draft(rows.deepcoder(call)).tests == [Returns(Call("add", [1, 2]), 3)]


def test_own_rows_have_inputs_with_outputs_or_asserts():
    found = draft(rows.own(examples=[{"input": "1 2\n", "output": "3\n"}], time_limit_s=4))
    assert found.tests == SUMS and found.public == SUMS[:1] and found.golden == [rows.SUM] and found.time_limit_s == 4
    asserts = rows.own() | {"tests": ["assert add(1, 2) == 3"], "golden": ["def add(a, b): return a + b"]}
    assert draft(asserts).tests == [Returns(Call("add", [1, 2]), 3)]


@pytest.mark.parametrize(
    "tests",
    [[{"input": "1"}], [{"input": 1, "output": "1"}], ["assert f(x) == 1"], ["import os"], "{", [3], "[" * 100_000],
    ids=["no output", "a number", "a name", "a statement", "no json", "no test", "deep"],
)
def test_an_own_row_that_cannot_be_read_is_an_error_with_its_number_and_a_public_one_is_dropped(tests):
    with pytest.raises(DataError, match="set, row 3 cannot be read"):
        draft(rows.own() | {"tests": tests})
    assert dropped(rows.apps(input_output=tests)) is Drop.UNREADABLE_TESTS


@pytest.mark.parametrize(
    "tests",
    [
        {"inputs": ["1"], "outputs": []},
        {"inputs": [[1]], "outputs": ["1"], "fn_name": 3},
        {"inputs": [None], "outputs": ["1"]},
        {"inputs": "abc", "outputs": "abc"},
    ],
    ids=["fewer outputs", "a function named 3", "no text", "texts"],
)
def test_tests_of_a_public_row_that_do_not_fit_together_are_dropped(tests):
    assert dropped(rows.apps(input_output=json.dumps(tests))) is Drop.UNREADABLE_TESTS


def test_a_number_of_more_digits_than_python_reads_is_dropped():
    text = '{"fn_name": "f", "inputs": [[1]], "outputs": [' + "9" * 5_000 + "]}"
    assert dropped(rows.apps(input_output=text)) is Drop.UNREADABLE_TESTS


def test_a_row_without_a_question_is_dropped_or_refused():
    assert dropped(rows.apps(question=" ")) is Drop.NO_QUESTION
    assert dropped(rows.apps(question=None)) is Drop.NO_QUESTION
    assert dropped(rows.own(question=" ")) is Drop.NO_QUESTION


@pytest.mark.parametrize(("given", "seconds"), [(None, None), (float("nan"), None), (2, 2.0)])
def test_a_time_limit_may_be_missing_also_as_pandas_writes_it(given, seconds):
    assert draft(rows.own(time_limit_s=given)).time_limit_s == seconds


@pytest.mark.parametrize("given", ["2", 0, -1, float("inf")])
def test_a_time_limit_is_a_number_of_seconds(given):
    with pytest.raises(DataError, match="row 3 cannot be read: ValueError: time_limit_s"):
        draft(rows.own(time_limit_s=given))


def test_texts_that_are_not_unicode_are_dropped_or_refused():
    half = "\ud800"
    assert dropped(rows.apps(question=half)) is dropped(rows.apps(tests=[(half, "1")])) is Drop.UNREADABLE_TESTS
    assert dropped(rows.apps(question="a\0b")) is Drop.NO_QUESTION
    with pytest.raises(DataError, match="set, row 3 cannot be read"):
        draft(rows.own(golden=half) | {"golden": [half]})


def test_columns_of_no_known_format_are_refused_with_what_is_known():
    with pytest.raises(DataError, match=r"has the columns prompt, answer(.|\n)*livecodebench: question_content"):
        format_of({"prompt": "p", "answer": 1}, "set")
