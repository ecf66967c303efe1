"""Files of workflows: broken, hostile, or not of this kind."""

from __future__ import annotations

from pathlib import Path

from wrong_configs.case import Case

HEAD = "from verl_mas.workflow import Outcome, Workflow\n\n\nclass Mine(Workflow):\n"
RUN = "    async def run(self, task, team):\n        return Outcome()\n"
SOLVER = "    agents = ('solver',)\n"
NAMES = "names are part of metric names"
NO_FILE = "a Python file or the name of a module"


def file(text: str | bytes, says: str, *more: str, **options: object) -> Case:
    """A workflow `Mine` in a file of this text."""

    def write(folder: Path) -> None:
        (folder / "mine.py").write_bytes(text.encode() if isinstance(text, str) else text)

    return at("{folder}/mine.py", says, *more, prepare=write, **options)


def at(path: str, says: str, *more: str, **options: object) -> Case:
    """A workflow `Mine` that is said to be at this path."""
    named = ("mas.workflow.name=Mine", "mas.agents=null", "mas.workflow.args={}", f"mas.workflow.path={path}")
    return Case((*named, *more), says, **options)


def agents(value: str, says: str) -> Case:
    return file(f"{HEAD}    agents = {value}\n{RUN}", says)


def check(code: str, says: str, *more: str) -> Case:
    return file(f"{HEAD}{SOLVER}{RUN}    def check(self):\n        {code}\n", says, *more)


CASES = (
    file("class Mine(:\n", "mine.py, line 1"),
    file("def f():\n\treturn 1\n        return 2\n", "mine.py, line 3"),
    file("import no_such_package\n", "No module named 'no_such_package'"),
    file("from json import no_such_name\n", "mine.py, line 1: ImportError"),
    file("# é\nx = 'é'\n".encode("latin-1"), "mine.py"),
    file("x = 'a\0b'\n", "mine.py"),
    file("x = 1 / 0\n", "mine.py, line 1: ZeroDivisionError"),
    file("import sys\nsys.exit(0)\n", "mine.py, line 2: SystemExit"),
    file("raise SystemExit\n", "mine.py, line 1: SystemExit"),
    file("raise GeneratorExit('stop')\n", "mine.py, line 1: GeneratorExit"),
    file("def f():\n    f()\nf()\n", "RecursionError"),
    file("import time\ntime.sleep(600)\n", "no end after 1 s", "mas.workflow.check_timeout_s=1"),
    file("", "mas.workflow.name=Mine"),
    file("Mine = 5\n", "mas.workflow.name=Mine"),
    file(HEAD + SOLVER, "has no `run`"),
    file(HEAD + SOLVER + RUN.replace("async ", ""), "`async def run"),
    file(HEAD + RUN, "names at least one agent"),
    file(HEAD + SOLVER + RUN, "classes of that file: Mine", "mas.workflow.name=Nope"),
    file(HEAD + SOLVER + RUN, "mas.workflow.path", "mas.workflow.name=single", warned=True),
    agents("('../../etc/x', 'a b')", NAMES),
    agents("('rows', 'timing')", NAMES),
    agents("('solver', '')", NAMES),
    agents("('solver', 'solver')", "twice"),
    agents("'solver'", "agents = ('solver',)"),
    agents("(1, 2)", "a tuple of names"),
    agents("5", "a tuple of names"),
    agents("{'solver', 'verifier'}", "a tuple of names"),
    agents("None", "a tuple of names"),
    agents("property(lambda self: [][0])", "IndexError"),
    check("raise ValueError('no server')", "ValueError: no server"),
    check("__import__('sys').exit(0)", "SystemExit"),
    check("while True: pass", "no end after 1 s", "mas.workflow.check_timeout_s=1"),
    check("assert False", "AssertionError"),
    at("{folder}", NO_FILE),
    at("{folder}/none.py", NO_FILE),
    at("{folder}/mine.py", NO_FILE, prepare=lambda f: (f / "mine.py").mkdir()),
    at("/dev/null", NO_FILE),
    at("{folder}/x.txt", NO_FILE, prepare=lambda f: (f / "x.txt").write_text(HEAD)),
    at("no_such_package.module", NO_FILE),
    at("''", NO_FILE),
    at("5", "mas.workflow.path is text"),
)
