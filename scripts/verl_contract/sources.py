"""Find definitions and base classes in the sources of verl, verl-mas and engines, without importing them."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("verl", "verl_mas", "verl_mas_vllm_cpu", "vllm", "sglang")


@dataclass(frozen=True)
class Definition:
    """A class, a function or an assignment, and the module that holds it."""

    module: str
    node: ast.AST

    @property
    def path(self) -> str:
        return f"{self.module}:{getattr(self.node, 'name', '')}"


def find(path: str) -> Definition | None:
    """Find `module:name` or `module:Class.member`, also through imports and base classes. Return None if missing."""
    module, _, names = path.partition(":")
    name, _, member = names.partition(".")
    definition = named(module, name)
    if definition is None or not member:
        return definition
    return next((own for line in ancestors(definition) if (own := own_members(line).get(member))), None)


@cache
def ancestors(definition: Definition) -> tuple[Definition, ...]:
    """Return a class and its base classes, nearest first."""
    line = [definition]
    for base in getattr(definition.node, "bases", []):
        parent = named(definition.module, root_of(base))
        line += [ancestor for ancestor in ancestors(parent) if ancestor not in line] if parent else []
    return tuple(line)


@cache
def own_members(definition: Definition) -> dict[str, Definition]:
    """Return the members that a class itself defines: methods, class attributes, and attributes that its methods
    assign to `self`."""
    members: dict[str, ast.AST] = {}
    for node in ast.walk(definition.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            members.setdefault(node.attr, node)
    for node in getattr(definition.node, "body", []):
        members.update(dict.fromkeys(_defines(node), node))
    return {name: Definition(definition.module, node) for name, node in members.items()}


@cache
def named(module: str, name: str) -> Definition | None:
    """Return the definition of a name that a module defines at its top level, or imports anywhere."""
    node = _names(module).get(name)
    if isinstance(node, ast.ImportFrom):
        (original,) = (alias.name for alias in node.names if name == (alias.asname or alias.name))
        if (origin := _origin(module, node), original) != (module, name):
            return named(origin, original)
        node = None
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Attribute):
        # An alias of a class, such as the `modified_class` of a Ray actor.
        return named(module, root_of(node.value)) or Definition(module, node)
    if node is not None:
        return Definition(module, node)
    if submodule := tree_of(f"{module}.{name}"):
        return Definition(f"{module}.{name}", submodule)
    tree = tree_of(module)
    stars = [node for node in _imports(tree) if node.names[0].name == "*"] if tree else []
    return next((there for star in stars if (there := named(_origin(module, star), name))), None)


@cache
def _names(module: str) -> dict[str, ast.AST]:
    tree = tree_of(module)
    return names_in(tree) if tree else {}


def names_in(tree: ast.Module) -> dict[str, ast.AST]:
    """Return the definitions and imports of a module by name. The name `*` is an import of all names of another
    module."""
    names: dict[str, ast.AST] = {alias.asname or alias.name: node for node in _imports(tree) for alias in node.names}
    # Definitions under a condition, in a `try` or in a `with` are included.
    pending: list[ast.AST] = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            names.update(dict.fromkeys(_defines(node), node))
            if isinstance(node, ast.If | ast.Try | ast.With):
                pending.append(node)
    return names


def _imports(tree: ast.Module) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def _defines(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def root_of(node: ast.AST) -> str:
    """Return the leftmost name of an expression: `a` for `a.b.c`, `a[b].c` and `a().b`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _origin(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    path = file_of(module)
    package = module.split(".") if path and path.name == "__init__.py" else module.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


@cache
def tree_of(module: str) -> ast.Module | None:
    return ast.parse(source_of(module)) if file_of(module) else None


def source_of(module: str) -> str:
    """Return the source of a module, or an empty string if the module does not exist."""
    path = file_of(module)
    return path.read_text() if path else ""


@cache
def file_of(module: str) -> Path | None:
    top, *rest = module.split(".")
    # Call find_spec for the top-level package only, because for a submodule it would import the package.
    spec = importlib.util.find_spec(top) if top in PACKAGES else None
    if spec is None or not spec.submodule_search_locations:
        return None
    base = Path(spec.submodule_search_locations[0]).joinpath(*rest)
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def parameters(node: ast.AST) -> str | None:
    """Return a function's parameters as the contract writes them, with `=` after each optional parameter. Return None
    if the node is not a function."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    required = len(positional) - len(a.defaults)
    written = [arg.arg + "=" * (i >= required) for i, arg in enumerate(positional)]
    written += [f"*{a.vararg.arg}"] if a.vararg else ["*"] if a.kwonlyargs else []
    written += [arg.arg + "=" * (default is not None) for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return ", ".join(written + ([f"**{a.kwarg.arg}"] if a.kwarg else []))


def is_dataclass(found: Definition) -> bool:
    """Return whether a class or one of its base classes is decorated as a dataclass."""
    decorators = [each for line in ancestors(found) for each in getattr(line.node, "decorator_list", [])]
    return any("dataclass" in ast.unparse(each) for each in decorators)


def takes(found: Definition) -> dict[str, bool]:
    """Return the parameters of a function, or the annotated fields of a class, and whether each is required."""
    if isinstance(found.node, ast.ClassDef):
        lines = [node for own in reversed(ancestors(found)) for node in getattr(own.node, "body", [])]
        fields = [node for node in lines if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
        return {ast.unparse(node.target): node.value is None for node in fields}
    given = [name for name in (parameters(found.node) or "").split(", ") if name and not name.startswith("*")]
    return {name.rstrip("="): not name.endswith("=") for name in given if name != "self"}
