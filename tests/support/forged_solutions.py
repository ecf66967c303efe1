"""Programs that try to pass tests without solving them: the programs of tests/environment/execution, and families of
programs that differ in a line."""

from pathlib import Path

from hostile_programs.case import read


def _equal(base: str = "", value: str = "Same()") -> str:
    return f"""
class Same{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __len__(self): return 1
    def __float__(self): return 0.0
    def __contains__(self, item): return True
def solve(x): return {value}
print({value})
"""


def _patched(patch: str) -> str:
    """Write a program that replaces functions with which its process reports, before and during the call."""
    return f"def patch():\n    {patch}\npatch()\ndef solve(x):\n    patch()\n    return x\nprint(True)\n"


WRITTEN = Path(__file__).parents[2] / "tests/environment/execution/forged_solutions.yaml"
KINDS = ("object", "int", "str", "float", "list", "tuple", "dict", "bytes")
FORGED = {
    **{case.name: case.program for case in read(WRITTEN)},
    **{f"{kind} that equals anything": _equal(f"({kind})") for kind in KINDS},
    "a list of what equals anything": _equal("(int)", "[Same()]"),
    "keys that equal anything": _equal("(str)", "{Same(): Same()}"),
    "an object that says it is an int": _equal() + "Same.__class__ = property(lambda self: int)\n",
    "an object that looks like an array": _equal("(list)")
    + """
class Array:
    def tolist(self): return Same()
Same.__module__ = Array.__module__ = "numpy"
Same.tolist = Array.tolist
def solve(x): return Array()
""",
    "an object that pickles to code": _equal()
    + "Same.__reduce__ = lambda self: (print, ('passed',))\nSame.__getstate__ = lambda self: 1\n",
    "patches json": _patched(
        "import json; json.dumps = lambda *a, **k: '{\"value\": true}'; json.loads = lambda *a: [['solve', '', '']]"
    ),
    "patches print and write": _patched(
        "import builtins, os, sys; builtins.print = lambda *a, **k: None; os.write = lambda *a: 1; sys.stdout = None"
    ),
    "patches type": _patched("import builtins; builtins.type = lambda *a: bool; builtins.isinstance = lambda *a: True"),
    "patches comparisons": _patched(
        "import operator, unittest; operator.eq = lambda a, b: True; unittest.TestCase.assertEqual = id"
    ),
    "patches exits": _patched("import os, sys; os._exit = lambda code: None; sys.exit = lambda *a: None"),
}
