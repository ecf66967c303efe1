"""Structure of the package: short functions and files, imports in one direction, few `Any`, no private names of other
modules."""

import ast
import io
import re
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "verl_mas"
FUNCTION, FILE = 60, 450
# `Any` in annotations and casts, per 1,000 lines of the package. This number only goes down.
ANY_PER_1000_LINES = 1.0
# Numbers that only go down; `python tests/test_structure.py` prints today's. Comments, docstrings and blank lines do
# not count, so that no sentence is shortened for a number. Tables and scripts count, so that no rule hides in YAML.
BUDGETS = {
    "lines of code of verl_mas": 36_996,
    "lines of code of its core": 12_134,
    "lines of code of its checks": 2_881,
    "lines of code of tests": 34_919,
    "lines of code of tests/support": 3_358,
    "files below 30 lines": 16,
    "own modules that one module imports": 39,
    "parameters of a function": 7,
    # Other functions get both as one `config.run.Run`.
    "functions with (config, mas)": 3,
    "type: ignore": 58,
    "SLF001": 25,
    "entries of the root": 20,
}
# Texts and pictures are not code.
SKIPPED = {".png", ".svg", ".gif", ".md", ".txt", ".ipynb"}
COMMENT_MARKS = {".yaml": "#", ".yml": "#", ".toml": "#", ".js": "//"}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
CORE = ("config/", "workflow/", "advantage/", "rollout/", "trainer/", "engines/", "verl_/data_plane.py")
ENTRIES = 24  # the most files and folders at the top of the package
# Not counted as core: verl-mas's own engine, and files that every registry needs.
OUTSIDE_CORE = ("engines/transformers/", "config/registry.py", "config/user_code.py", "config/environment.yaml")
# A package imports from lines above it, or from its own line.
ORDER = [
    ["errors", "plugin", "util"],
    ["verl_"],
    ["run_folder"],
    ["config"],
    ["workflow"],
    ["gateway"],
    ["environment"],
    ["workflows", "data"],
    ["advantage", "rollout", "engines", "testing", "recipes", "planning"],
    ["trainer"],
    ["checks", "results"],
    ["cli"],
    # The toy tasks, which are found only by entry points.
    ["gym"],
]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


OURS = files(PACKAGE)
PRODUCT = [*OURS, *files("benchmarks", "hydra_plugins", "recipes", "scripts", ".ci")]
EVERYTHING = [*PRODUCT, *files("tests")]


def at(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def imports(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield each import of the package, also in functions and for type checking: (module, name or '', line)."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and inside(node.module or ""):
            yield from ((node.module or "", alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "", node.lineno) for alias in node.names if inside(alias.name))


def inside(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def part_of(module: str, name: str = "") -> str:
    """Return the part of verl_mas that `from module import name` reaches: `config`, `errors`; '' for verl_mas
    itself."""
    parts = module.split(".")[1:] or ([name] if (ROOT / PACKAGE / name).is_dir() else [])
    parts = parts or ([name] if (ROOT / PACKAGE / f"{name}.py").exists() else [""])
    return parts[0]


def arrows() -> dict[tuple[str, str], list[str]]:
    """Map each pair (importing package, imported package) to the places of its imports."""
    found = defaultdict(list)
    for path in OURS:
        source = path.relative_to(ROOT / PACKAGE).with_suffix("").parts[0]
        for module, name, line in imports(path):
            if source not in ("__init__", "__main__", part_of(module, name)):
                found[source, part_of(module, name)].append(at(path, line))
    return found


def upward(found: Iterable[tuple[str, str]], order: list[list[str]]) -> set[tuple[str, str]]:
    height = {name: level for level, names in enumerate(order) for name in names}
    return {(low, high) for low, high in found if height[low] < height.get(high, len(order))}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_arrows(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Map each module to the modules that it imports, also in functions and for type checking."""
    modules = {module_of(path): path for path in paths}
    return {
        module: {f"{source}.{name}" if f"{source}.{name}" in modules else source for source, name, _ in imports(path)}
        & modules.keys() - {module}
        for module, path in modules.items()
    }


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the cycles, each as the set of its nodes."""
    reachable = {name: reach(graph, name) for name in graph}
    return {
        frozenset(other for other in reachable[name] if name in reachable[other])
        for name in graph
        if name in reachable[name]
    }


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def private_names(path: Path) -> Iterator[str]:
    """Yield private names that are imported, or read from an imported module or class of the package."""
    known = {name or module for module, name, _ in imports(path)}
    yield from (f"{at(path, line)} {name}" for _, name, line in imports(path) if is_private(name))
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in known:
            yield f"{at(path, node.lineno)} {ast.unparse(node)}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def long_functions(path: Path, limit: int) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > limit:
                yield f"{at(path, node.lineno)} {node.name}: {length} lines"


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def anys(path: Path) -> int:
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(parsed(path)))


def functions(path: Path) -> list[list[str]]:
    """The parameters of every function, without self."""
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lists = [[arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)] for node in nodes]
    return [[name for name in names if name not in ("self", "cls")] for names in lists]


def modules_imported(path: Path) -> int:
    return len({f"{module}.{name}" if is_module(module, name) else module for module, name, _ in imports(path)})


def is_module(module: str, name: str) -> bool:
    return (ROOT / f"{module}.{name}".replace(".", "/")).with_suffix(".py").is_file()


def of_python(source: str) -> int:
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code.difference(*_docstrings(source)))


def _docstrings(source: str) -> Iterator[range]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            yield range(text.lineno, (text.end_lineno or 0) + 1)


def of_file(path: Path) -> int:
    text = path.read_text(errors="replace")
    if path.suffix == ".py":
        return of_python(text)
    mark = COMMENT_MARKS.get(path.suffix)
    lines = filter(None, map(str.strip, text.splitlines()))
    return sum(mark is None or not line.startswith(mark) for line in lines)


def tracked(part: str) -> list[Path]:
    """Return the files that git tracks below a folder, or a single tracked file."""
    listed = subprocess.run(["git", "ls-files", part], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.splitlines()]
    return [path for path in paths if path.is_file() and path.suffix not in SKIPPED]


def of_part(part: str) -> int:
    return sum(map(of_file, tracked(part)))


def in_core(path: Path) -> bool:
    below = str(path.relative_to(ROOT / PACKAGE))
    return below.startswith(CORE) and not below.startswith(OUTSIDE_CORE)


def measured() -> dict[str, int]:
    texts = "".join(path.read_text() for path in OURS)
    parameters = [names for path in OURS for names in functions(path)]
    short = [path for path in OURS if lines_of(path) < 30 and path.name != "__init__.py"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    values = [
        of_part(PACKAGE),
        sum(map(of_file, filter(in_core, tracked(PACKAGE)))),
        of_part(f"{PACKAGE}/checks"),
        of_part("tests"),
        of_part("tests/support"),
        len(short),
        max(map(modules_imported, OURS)),
        max(map(len, parameters)),
        sum({"config", "mas"} <= {*names} for names in parameters),
        texts.count("type: ignore"),
        texts.count("SLF001"),
        len({path.partition("/")[0] for path in listed}),
    ]
    return dict(zip(BUDGETS, values, strict=True))


@pytest.mark.parametrize("what", BUDGETS)
def test_a_budget_is_kept(what, now):
    assert now[what] <= BUDGETS[what]


@pytest.fixture(scope="module")
def now() -> dict[str, int]:
    return measured()


def test_functions_are_short():
    assert [found for path in PRODUCT for found in long_functions(path, FUNCTION)] == []


def test_files_are_short():
    assert [f"{at(path)} {lines_of(path)}" for path in EVERYTHING if lines_of(path) > FILE] == []


def test_every_package_has_a_place_in_the_order():
    there = {path.relative_to(ROOT / PACKAGE).with_suffix("").parts[0] for path in OURS} - {"__init__", "__main__"}
    assert there - {name for names in ORDER for name in names} == set()


def test_no_package_imports_one_that_is_built_on_it():
    found = arrows()
    wrong = {arrow: found[arrow] for arrow in upward(found, ORDER)}
    assert wrong == {}


def test_packages_import_each_other_in_no_cycle():
    found = set(arrows())
    assert cycles({name: {high for low, high in found if low == name} for pair in found for name in pair}) == set()


def test_modules_import_each_other_in_no_cycle():
    assert cycles(module_arrows(OURS)) == set()


def test_no_module_uses_a_private_name_of_another_one():
    assert [name for path in PRODUCT for name in private_names(path)] == []


def test_the_share_of_any_only_goes_down():
    share = 1000 * sum(map(anys, OURS)) / sum(map(lines_of, OURS))
    assert share <= ANY_PER_1000_LINES


def test_the_package_explains_each_of_its_few_entries():
    entries = {path.relative_to(ROOT / PACKAGE).parts[0] for path in tracked(PACKAGE)}
    explained = re.findall(r"^- `([\w.]+)/?`: ", ast.get_docstring(parsed(ROOT / PACKAGE / "__init__.py")) or "", re.M)
    assert sorted(explained) == sorted(entries) and len(entries) <= ENTRIES


def test_a_cycle_of_modules_is_found_also_where_a_function_or_a_type_checker_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    sources = {
        "verl_mas/a/__init__.py": "",
        "verl_mas/a/b.py": "if TYPE_CHECKING:\n    from verl_mas.a.c import C\n",
        "verl_mas/a/c.py": "def f():\n    from verl_mas.a import b\n",
        "verl_mas/d.py": "import verl_mas.a.b\nfrom verl_mas.a import nothing\n",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    graph = module_arrows(map(tmp_path.joinpath, sources))
    assert graph["verl_mas.d"] == {"verl_mas.a", "verl_mas.a.b"}
    assert cycles(graph) == {frozenset({"verl_mas.a.b", "verl_mas.a.c"})}


if __name__ == "__main__":
    for what, value in measured().items():
        print(f"{value:6} {BUDGETS[what]:6} {what}")  # noqa: T201


def test_upward_arrows_private_names_and_lines_of_code_are_found(tmp_path, monkeypatch):
    order = [["errors"], ["config"], ["cli"]]
    wrong = {("errors", "config"), ("cli", "")}
    assert upward([("config", "errors"), ("cli", "config"), *wrong], order) == wrong
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "new.py").write_text("from verl_mas import row\nfrom verl_mas.verl_.row import _x, y\nrow._z\ny.z\n")
    assert [*private_names(tmp_path / "new.py")] == ["new.py:2 _x", "new.py:3 row._z"]
    documented = '"""A module."""\n\nimport os  # of use\n\n\ndef f():\n    """One line,\n    and another."""\n'
    assert of_python(documented + "    # why\n    return [\n        os,\n\n    ]\n") == 5
