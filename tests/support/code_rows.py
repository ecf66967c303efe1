"""Rows in the formats of the public sets of programming tasks."""

import base64
import json
import pickle
import zlib
from collections.abc import Sequence
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
Pairs: TypeAlias = Sequence[tuple[object, object]]

SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
SUMS = [("1 2\n", "3\n"), ("10 20\n", "30\n"), ("7 8\n", "15\n")]
STATEMENT = """Polycarp has {what}, and he wants to know their sum. Read the two numbers and help him to find it.

-----Input-----

One line with two integers.

-----Output-----

Their sum.

-----Examples-----
Input
1 2

Output
3
"""
TWICE = (
    "class Solution:\n    def twice(self, values: List[int]) -> List[int]:\n        return [2 * v for v in values]\n"
)


def apps(what: str = "two numbers", tests: Pairs = SUMS, solutions: Sequence[str] = (SUM,), **fields: object) -> Row:
    pairs = {"inputs": [given for given, _ in tests], "outputs": [printed for _, printed in tests]}
    row: Row = {"question": STATEMENT.format(what=what), "starter_code": "", "difficulty": "interview"}
    return row | {"input_output": json.dumps(pairs), "solutions": json.dumps(list(solutions))} | fields


def apps_function(name: str, inputs: object, outputs: object, solutions: Sequence[str], **fields: object) -> Row:
    tests = json.dumps({"fn_name": name, "inputs": inputs, "outputs": outputs})
    return apps(solutions=solutions) | {"question": "Return it.", "input_output": tests} | fields


def code_contests(solutions: Sequence[tuple[int, str]] = ((3, SUM),), **fields: object) -> Row:
    row: Row = {"name": "1_A. Sum", "description": STATEMENT.format(what="a pair"), "input_file": "", "output_file": ""}
    columns = [{"input": [given], "output": [printed]} for given, printed in SUMS]
    tests = dict(zip(("public_tests", "private_tests", "generated_tests"), columns, strict=True))
    languages = {"language": [one for one, _ in solutions], "solution": [program for _, program in solutions]}
    return row | tests | {"solutions": languages, "time_limit": {"seconds": 1, "nanos": 0}} | fields


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def livecodebench(
    public: Pairs = SUMS[:1], private: Pairs = SUMS[1:], name: str = "", pack: bool = True, **fields: object
) -> Row:
    kind = "functional" if name else "stdin"

    def tests(pairs: Pairs) -> str:
        return json.dumps([{"input": given, "output": printed, "testtype": kind} for given, printed in pairs])

    row: Row = {"question_title": "Sum", "question_content": "Print the sum.", "starter_code": ""}
    metadata = json.dumps({"func_name": name} if name else {})
    hidden = packed(tests(private)) if pack else tests(private)
    return row | {"public_test_cases": tests(public), "private_test_cases": hidden, "metadata": metadata} | fields


def deepcoder(tests: object) -> Row:
    return {"problem": "Print the sum.", "tests": json.dumps(tests), "solutions": [SUM]}


def own(question: str = "Print the sum.", tests: Pairs = SUMS, golden: str = SUM, **fields: object) -> Row:
    made = [{"input": given, "output": printed} for given, printed in tests]
    return {"question": question, "tests": made, "golden": golden} | fields
