"""The tables of `CONTRIBUTING.md`: packages, tests that guard rules, and kinds of extensions with their registries."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pages.markdown import cell, table

GUARDS = (
    "tests/test_structure.py",
    "tests/test_language.py",
    "tests/test_public_api.py",
    "tests/test_declared.py",
    "tests/verl_/test_contract.py",
    "tests/engines/test_contract.py",
    "tests/checks/test_broken_commands.py",
    "tests/cli/test_broken_arguments.py",
    "tests/gateway/endpoints/test_broken_networks.py",
    "tests/run_folder/test_broken_disks.py",
    "benchmarks/tests/test_ledger.py",
)
# Name of a registry -> the code with which a file registers an entry.
REGISTERED = {
    "workflow": '`@register_workflow("name")`, a class',
    "advantage estimator": "`@estimator(...)`, a function of that name",
    "puzzle": '`@register_puzzle("name")`, a class',
    "grader": '`@register_grader("name")`, a function `(truth, answer) -> float or None`',
    "executor": '`@register_executor("name")`, a class with `check`, `execute`, `call`, `aclose`',
    "commit rule": '`@register_commit_rule("name")`, a function `(scores, temperature, rng) -> index`',
    "engine": '`register_engine("name", ...)`',
    "data set": '`@DATA_SETS.register("name")`, a `DataSet`',
    "world": '`@WORLDS.register("name")`, a `World`',
    "dialect": '`@DIALECTS.register("name")`, a `Dialect`',
}


def first_sentence(file: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def order(root: Path) -> list[str]:
    """Return packages and modules in the order in which they may import each other."""
    tree = ast.parse((root / "tests/test_structure.py").read_text())
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return [name for layer in ast.literal_eval(values["ORDER"]) for name in layer]


def packages(root: Path) -> str:
    rows = []
    for name in order(root):
        folder = root / "verl_mas" / name
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if file.exists():
            rows.append((f"`{name}/`" if folder.is_dir() else f"`{name}.py`", cell(first_sentence(file))))
    return table(("package", "contains"), rows)


def guards(root: Path) -> str:
    return table(("test", "holds"), [(f"`{name}`", cell(first_sentence(root / name))) for name in GUARDS])


def registries(root: Path) -> dict[str, dict[str, str]]:
    """Return the arguments of every registry, such as its folder and entry point group, by the registry's name."""
    found = {}
    for file in sorted(root.glob("verl_mas/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and re.fullmatch(r"Registry(\[.*\])?", ast.unparse(node.func)):
                arguments = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                found[ast.literal_eval(node.args[0])] = arguments
    return found


def extensions(root: Path) -> str:
    rows = []
    found = registries(root)
    for noun in sorted(found, key=list(REGISTERED).index):
        folder = found[noun].get("package", "").removeprefix("verl_mas.").replace(".", "/")
        group = found[noun].get("group")
        rows.append((noun, f"`{folder}/`" if folder else "", REGISTERED[noun], f"`{group}`" if group else ""))
    return table(("what", "folder", "in the file", "entry point group"), rows)


def page(root: Path) -> str:
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name, made in {"packages": packages, "guards": guards, "extensions": extensions}.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}{made(root)}\n{end}{rest.split(end)[1]}"
    return text
