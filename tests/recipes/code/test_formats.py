"""Rows in the public formats and a user's own rows become drafts. Nothing in a row is evaluated."""

import os
import zlib
from base64 import b64encode

import code_rows as rows
import pytest

from verl_mas.config.hydra.recipe.code.formats import Drop, Dropped, format_of, read
from verl_mas.environment.execution.executor import Call
from verl_mas.environment.execution.problem import Returns, Stdio
from verl_mas.errors import DataError

SUMS = [Stdio(*pair) for pair in rows.SUMS]


def draft(row):
    return read(row, 3, "set", format_of(row, "set"))


def test_apps_has_its_tests_and_solutions_as_json_texts_and_lists_of_lines_are_texts():
    of_apps = draft(rows.apps())
    assert of_apps.tests == SUMS and of_apps.golden == [rows.SUM] and not of_apps.public
    assert draft(rows.apps(tests=[(["1 2", "3 4"], ["3", "7"])])).tests == [Stdio("1 2\n3 4", "3\n7")]


@pytest.mark.parametrize("empty", ["", " ", None, "{}", "null", '{"other": 1}'])
def test_a_public_row_without_tests_is_a_draft_without_tests(empty):
    assert draft(rows.apps(input_output=empty)).tests == []


@pytest.mark.parametrize("empty", ["", None, "[]"])
def test_a_row_without_solutions_has_no_golden_programs(empty):
    assert draft(rows.apps(solutions=()) | {"solutions": empty}).golden == []


STARTER = "class Solution:\n    def twice(self, values: List[int]) -> List[int]:"


@pytest.mark.parametrize(
    ("name", "cases", "starter", "function", "ending", "wrapped"),
    [
        # A task of LeetCode: the function is a method, and the question has the starter code.
        ("twice", [([[1, 2]], [2, 4])], STARTER, "Solution.twice", f"```python\n{STARTER}\n```", False),
        # If there is no starter code, the question names the function.
        ("double", [([1], [2]), ([2], [4])], "", "double", "Write the function `double`.", True),
        # Texts stay texts.
        ("spin", [(["Hey"], "yeH"), (["3"], "3")], "", "spin", "Write the function `spin`.", False),
    ],
)
def test_a_function_is_called_by_its_tests_and_shown_in_the_question(name, cases, starter, function, ending, wrapped):
    inputs, outputs = zip(*cases, strict=True)
    of_function = draft(rows.apps_function(name, inputs, outputs, ["def f(x): return x"], starter_code=starter))
    assert of_function.tests == [Returns(Call(function, given), expected) for given, expected in cases]
    assert of_function.question.endswith(ending) and of_function.wrapped == wrapped


def test_code_contests_keeps_python_3_solutions_and_tells_public_tests_apart():
    contest = draft(rows.code_contests(solutions=[(1, "print 1"), (3, rows.SUM), (2, "int main(){}")]))
    assert contest.golden == [rows.SUM] and contest.public == SUMS[:1] and contest.tests == SUMS


@pytest.mark.parametrize("pack", [True, False])
def test_livecodebench_has_hidden_tests_as_json_or_packed(pack):
    lcb = draft(rows.livecodebench(pack=pack))
    assert lcb.tests == SUMS and lcb.public == SUMS[:1] and not lcb.golden


def test_a_function_of_livecodebench_takes_one_json_value_per_line():
    lcb = draft(rows.livecodebench([("[1, 2]\n3", "[4, 5]")], [("[]\n0", "[]")], "twice", starter_code=STARTER))
    calls = [([[1, 2], 3], [4, 5]), ([[], 0], [])]
    assert lcb.tests == [Returns(Call("Solution.twice", given), expected) for given, expected in calls]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/verl_mas_hostile_pickle",)


HALF = "\ud800"
# Tests that are refused in a user's own row, and for which a public row is dropped.
UNREADABLE = {
    "no output": [{"input": "1"}],
    "a number": [{"input": 1, "output": "1"}],
    "a name": ["assert f(x) == 1"],
    "a statement": ["import os"],
    "no json": "{",
    "no test": [3],
    "deep": "[" * 100_000,
}
PUBLIC = {
    "fewer outputs": '{"inputs": ["1"], "outputs": []}',
    "a function named 3": '{"inputs": [[1]], "outputs": ["1"], "fn_name": 3}',
    "no text": '{"inputs": [null], "outputs": ["1"]}',
    "texts": '{"inputs": "abc", "outputs": "abc"}',
    "more digits than python reads": '{"fn_name": "f", "inputs": [[1]], "outputs": [' + "9" * 5_000 + "]}",
}
PACKED = {
    "class": rows.packed(Hostile()),
    "list of numbers": rows.packed([1]),
    "text": rows.packed("no json"),
    "empty": b64encode(zlib.compress(b"")).decode(),
    "truncated": b64encode(zlib.compress(b"(") + b"x")[:-4].decode(),
    "bytes": b64encode(b"no zlib").decode(),
    "characters": "no base64!",
    "bomb": rows.packed("x" * 1_000_000),
}
DROPPED = {
    **{name: (rows.apps(input_output=tests), Drop.UNREADABLE_TESTS) for name, tests in (UNREADABLE | PUBLIC).items()},
    **{name: (rows.livecodebench(private_test_cases=tests), Drop.UNREADABLE_TESTS) for name, tests in PACKED.items()},
    **{f"question {text!r}": (rows.apps(question=text), Drop.NO_QUESTION) for text in (" ", None, "a\0b")},
    "question of one's own": (rows.own(question=" "), Drop.NO_QUESTION),
    "half a character": (rows.apps(question=HALF), Drop.UNREADABLE_TESTS),
    "half a character in a test": (rows.apps(tests=[(HALF, "1")]), Drop.UNREADABLE_TESTS),
    "file": (rows.code_contests(input_file="input.txt"), Drop.FILE_INPUT),
}


@pytest.mark.parametrize(("row", "reason"), DROPPED.values(), ids=DROPPED)
def test_a_public_row_that_cannot_be_read_is_dropped_and_nothing_in_it_is_run(row, reason, monkeypatch):
    monkeypatch.setattr("verl_mas.config.hydra.recipe.code.formats.UNPACKED_BYTES", 1_000)
    with pytest.raises(Dropped) as caught:
        draft(row)
    assert caught.value.reason is reason and not os.path.exists("/tmp/verl_mas_hostile_pickle")


@pytest.mark.parametrize(
    "changed",
    [
        *({"tests": tests} for tests in UNREADABLE.values()),
        *({"time_limit_s": given} for given in ("2", 0, -1, float("inf"))),
        {"golden": [HALF]},
    ],
)
def test_a_row_of_ones_own_that_cannot_be_read_is_an_error_with_its_number(changed):
    with pytest.raises(DataError, match="set, row 3 cannot be read"):
        draft(rows.own() | changed)


def test_deepcoder_has_tests_in_both_of_its_forms():
    listed = [{"type": "stdin_stdout", "input": given, "output": printed} for given, printed in rows.SUMS]
    columns = {f"{name}s": [test[name] for test in listed] for name in ("input", "output")}
    assert draft(rows.deepcoder(listed)).tests == draft(rows.deepcoder(columns)).tests == SUMS
    call = [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}]
    assert draft(rows.deepcoder(call)).tests == [Returns(Call("add", [1, 2]), 3)]


def test_own_rows_have_inputs_with_outputs_or_asserts():
    own = draft(rows.own(examples=[{"input": "1 2\n", "output": "3\n"}], time_limit_s=4))
    assert own.tests == SUMS and own.public == SUMS[:1] and own.golden == [rows.SUM] and own.time_limit_s == 4
    asserts = rows.own() | {"tests": ["assert add(1, 2) == 3"], "golden": ["def add(a, b): return a + b"]}
    assert draft(asserts).tests == [Returns(Call("add", [1, 2]), 3)]


def test_columns_of_no_known_format_are_refused_with_what_is_known():
    with pytest.raises(DataError, match=r"has the columns prompt, answer(.|\n)*livecodebench: question_content"):
        format_of({"prompt": "p", "answer": 1}, "set")
