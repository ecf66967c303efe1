"""Reads public sets of programming tasks, and a user's own files, and converts each row to a `Draft`.

A file's format is recognised by its columns. No code in a row is executed: texts are parsed as JSON, and
LiveCodeBench's pickled texts are loaded by an unpickler that refuses every class.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from verl_mas.environment.execution.executor import Call, Plain
from verl_mas.environment.execution.problem import Returns, Stdio, Test, read_assert
from verl_mas.environment.retrieval.files import Row
from verl_mas.errors import DataError

PYTHON_3 = 3  # the number of Python 3 in CodeContests' solutions.language
UNPACKED_BYTES = 1 << 30  # the largest size of one row's hidden tests
OWN_FORMAT = (
    'question is a text; tests is a list of {"input": ..., "output": ...} or of texts "assert f(1) == 2", whose values '
    "are literals; golden is a text or a list of texts; time_limit_s is a number"
)


class Drop(str, Enum):
    """Why a task is skipped. The manifest counts each reason."""

    NO_QUESTION = "no_question"
    NO_TESTS = "no_tests"
    UNREADABLE_TESTS = "unreadable_tests"
    FILE_INPUT = "reads_or_writes_a_file"
    LONG_QUESTION = "question_too_long"
    LONG_TESTS = "tests_too_long"
    NO_GOLDEN = "no_golden_program"
    GOLDEN_FAILS = "no_golden_program_passes"
    GOLDEN_DISAGREE = "golden_programs_disagree"
    AMBIGUOUS = "outputs_ambiguous"


class Dropped(Exception):
    """A row of a public set that is skipped and counted."""

    def __init__(self, reason: Drop):
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Draft:
    """A task as it was read: with all tests, and with programs that are claimed to be right."""

    question: str
    tests: Sequence[Test]
    public: Sequence[Test] = ()
    golden: Sequence[str] = ()
    # Each expected value is a list with one element, and the set does not say whether the list or its element is meant.
    wrapped: bool = False
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Format:
    """A layout of rows, recognised by its columns. `mine`: the user wrote the file, so an unreadable row is an
    error."""

    name: str
    columns: Sequence[str]
    read: Callable[[Row], Draft]
    mine: bool = False


def format_of(row: Row, source: str) -> Format:
    for form in FORMATS:
        if all(column in row for column in form.columns):
            return form
    known = "; ".join(f"{form.name}: {', '.join(form.columns)}" for form in FORMATS)
    rule = f"a file of programming tasks has the columns of one of these formats ({known})"
    fix = 'write rows as {"question": ..., "tests": [{"input": ..., "output": ...}], "golden": ...}'
    raise DataError(f"{source} has the columns {', '.join(map(str, row)) or 'none'}", rule=rule, fix=fix)


def read(row: Row, number: int, source: str, form: Format) -> Draft:
    """Read the draft of a row. Raises Dropped, or DataError for a row in the format for the user's own files."""
    try:
        draft = form.read(row)
        if not _text(draft.question).strip() or "\0" in draft.question:
            raise Dropped(Drop.NO_QUESTION)
        return draft
    # These errors are raised for text that is not JSON, values of a wrong type, missing fields, and too deep nesting.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if not form.mine:
            raise Dropped(Drop.UNREADABLE_TESTS) from error
        problem = error.value if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        value = f"{source}, row {number} cannot be read: {problem[:300]}"
        raise DataError(value, rule=OWN_FORMAT, fix="correct or remove the row") from error


def _apps(row: Row) -> Draft:
    """Read APPS and TACO, whose tests and solutions are JSON texts; both may be empty."""
    return _with_function(row, _mapping(row["input_output"]), _texts(row.get("solutions")))


def _deepcoder(row: Row) -> Draft:
    """Read DeepCoder, whose `tests` are like APPS' input_output, or a list of tests that may each name a function."""
    tests, row = _json(row["tests"]), {**row, "question": row["problem"]}
    if isinstance(tests, list):
        rows = [_mapping(test) for test in tests]
        names = {_function_name(test) for test in rows}
        tests = {
            "inputs": [test["input"] for test in rows],
            "outputs": [test["output"] for test in rows],
            "fn_name": names.pop() if len(names) == 1 else None,
        }
    return _with_function(row, _mapping(tests), _texts(row.get("solutions")))


def _code_contests(row: Row) -> Draft:
    if row.get("input_file") or row.get("output_file"):
        raise Dropped(Drop.FILE_INPUT)
    public, hidden, generated = (
        _stdio(row[name]["input"], row[name]["output"]) if row.get(name) else []
        for name in ("public_tests", "private_tests", "generated_tests")
    )
    solutions = row["solutions"] or {"language": [], "solution": []}
    pairs = zip(solutions["language"], solutions["solution"], strict=True)
    golden = [_text(program) for language, program in pairs if language == PYTHON_3]
    return Draft(row["description"], [*public, *hidden, *generated], public, golden)


def _livecodebench(row: Row) -> Draft:
    name = _function_name(row)
    starter = row.get("starter_code") or ""
    public, hidden = (
        _of_livecodebench(tests, name and _function(name, starter))
        for tests in (_list(row["public_test_cases"]), _hidden(row["private_test_cases"]))
    )
    return Draft(_with_starter(row["question_content"], name, starter), [*public, *hidden], public)


def _own(row: Row) -> Draft:
    golden = row.get("golden") or ()
    return Draft(
        _text(row["question"]),
        [_own_test(test) for test in _list(row["tests"])],
        [_own_test(test) for test in _list(row.get("examples"))],
        [_text(program) for program in ([golden] if isinstance(golden, str) else golden)],
        time_limit_s=_seconds(row.get("time_limit_s")),
    )


FORMATS = (
    Format("apps, taco", ("question", "input_output"), _apps),
    Format("code_contests", ("description", "public_tests", "solutions"), _code_contests),
    Format("livecodebench", ("question_content", "public_test_cases", "private_test_cases"), _livecodebench),
    Format("deepcoder", ("problem", "tests"), _deepcoder),
    Format("own", ("question", "tests"), _own, mine=True),
)


def _own_test(test: object) -> Test:
    if isinstance(test, str):
        return read_assert(test)
    row = _mapping(test)
    return Stdio(_text(row["input"]), _text(row["output"]))


def _with_function(row: Row, given: Row, golden: Sequence[str]) -> Draft:
    """Read APPS' form. With `fn_name`, each input is a list of arguments; without `fn_name`, it is the standard
    input."""
    question, name = row["question"] or "", given.get("fn_name")
    inputs, outputs = _list(given.get("inputs")), _list(given.get("outputs"))
    if not name:
        return Draft(question, _stdio(inputs, outputs), golden=golden)
    starter = row.get("starter_code") or ""
    function = _function(_text(name), starter or "".join(golden[:1]))
    tests = [_returns(function, args, expected) for args, expected in zip(inputs, outputs, strict=True)]
    wrapped = bool(tests) and all(isinstance(test.expected, list) and len(test.expected) == 1 for test in tests)
    return Draft(_with_starter(question, name, starter), tests, golden=golden, wrapped=wrapped)


def _stdio(inputs: Iterable[object], outputs: Iterable[object]) -> list[Stdio]:
    return [Stdio(_joined(given), _joined(printed)) for given, printed in zip(inputs, outputs, strict=True)]


def _joined(text: object) -> str:
    """Return a text. If a set has a list of lines instead of the text, join the lines."""
    return "\n".join(map(_text, text)) if isinstance(text, list) else _text(text)


def _of_livecodebench(tests: Iterable[object], function: str | None) -> list[Test]:
    read: list[Test] = []
    for test in map(_mapping, tests):
        if test["testtype"] == "stdin":
            read.append(Stdio(_text(test["input"]), _text(test["output"])))
        elif function is None:
            raise ValueError("a functional test without a function name")
        else:
            read.append(_returns(function, test["input"], test["output"]))
    return read


def _function_name(row: Row) -> str | None:
    """Return the name of the function that a row or a test calls: `fn_name`, or `func_name` in its metadata."""
    name = row.get("fn_name") or _mapping(row.get("metadata")).get("func_name")
    return _text(name) if name else None


def _function(name: str, code: str) -> str:
    """Return the full name of a function. LeetCode's functions are methods of a class Solution."""
    return f"Solution.{name}" if re.search(r"^class Solution\b", code, re.MULTILINE) else name


def _with_starter(question: str, name: str | None, starter: str | None) -> str:
    """Add the function's starter code or name to the question, because the tests call the function by its name."""
    if not name:
        return question
    if starter and starter.strip():
        return f"{question.rstrip()}\n\nComplete this code:\n```python\n{starter.rstrip()}\n```"
    return f"{question.rstrip()}\n\nWrite the function `{name}`."


def _returns(function: str, args: object, expected: Plain) -> Returns:
    """Make a test of a function. If `args` is a text, each line is a JSON value, and `expected` is a JSON text, too."""
    if isinstance(args, list):
        return Returns(Call(function, args), expected)
    values = [json.loads(line) for line in _text(args).split("\n") if line.strip()]
    return Returns(Call(function, values), json.loads(_text(expected)))


def _json(given: object) -> object:
    """Parse a JSON text; an empty text becomes None. Values that are not texts are returned unchanged."""
    if isinstance(given, str):
        return json.loads(given) if given.strip() else None
    return given


def _list(given: object) -> list[object]:
    """Return a list, or the list in a JSON text; None becomes an empty list."""
    value = _json(given)
    if not isinstance(value, list | None):
        raise TypeError(f"{str(value)[:80]!r} is not a list")
    return value or []


def _mapping(given: object) -> Row:
    value = _json(given)
    if not isinstance(value, Mapping | None):
        raise TypeError(f"{str(value)[:80]!r} is not a mapping")
    return value or {}


def _texts(given: object) -> list[str]:
    return [_text(program) for program in _list(given)]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:80]!r} is not a text")
    value.encode()  # raises for half a surrogate pair, which JSON can hold, but a file cannot
    return value


def _seconds(value: object) -> float | None:
    # Parquet files written by pandas have NaN for a missing number.
    if value is None or value != value:
        return None
    if not isinstance(value, int | float) or not 0 < value <= 3600:
        raise ValueError(f"time_limit_s {value!r:.80} is not a number of seconds up to 3600")
    return float(value)


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name}: the text of the tests needs no class")


def _hidden(text: str) -> list[object]:
    """Read hidden tests: a JSON text, or a JSON text that was pickled, compressed by zlib and encoded in base64."""
    try:
        return _list(text)
    except json.JSONDecodeError:
        pass
    unpacker = zlib.decompressobj()
    try:
        packed = unpacker.decompress(base64.b64decode(text, validate=True), UNPACKED_BYTES)
        if not unpacker.eof:
            raise ValueError("the hidden tests are cut or too large")
        unpickled = _NoClasses(io.BytesIO(packed)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError) as error:
        raise ValueError(f"the hidden tests cannot be unpacked: {error}") from error
    return _list(_text(unpickled))
