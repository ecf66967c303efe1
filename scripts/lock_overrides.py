"""Write scripts/verl_contract/overridden.json: the methods of the installed verl that verl-mas overrides.

    python scripts/lock_overrides.py

A test compares the file with the sources of verl-mas and verl; `verl-mas doctor` compares the file with a user's verl.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import verl_contract as contract
from verl_contract.sources import Definition, ancestors, find, own_members, parameters, tree_of

import verl_mas

PACKAGE = Path(verl_mas.__file__).parent
# The code that runs verl's vLLM engine on the CPU is a separate package.
ON_CPU = Path(__file__).parent / "vllm_cpu" / "verl_mas_vllm_cpu"
sys.path.append(str(ON_CPU.parent))


def sources() -> dict[str, Path]:
    """Return the Python files of verl_mas and verl_mas_vllm_cpu by module name."""
    found = {}
    for package in (PACKAGE, ON_CPU):
        for file in package.rglob("*.py"):
            parts = file.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


def modules() -> list[str]:
    return list(sources())


@dataclass(frozen=True)
class Ours:
    """A class of verl-mas that inherits from verl, and its base classes: those of verl-mas (itself included) in `ours`
    and those of verl in `verls`."""

    module: str
    node: ast.ClassDef
    ours: tuple[Definition, ...]
    verls: tuple[Definition, ...]

    @property
    def base(self) -> str:
        return self.verls[0].path


def classes(module: str) -> Iterator[Ours]:
    tree = tree_of(module)
    assert tree is not None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            line = ancestors(Definition(module, node))
            mixed = find(contract.MIXED_INTO.get(f"{module}:{node.name}", ":"))
            line += ancestors(mixed) if mixed else ()
            verls = tuple(one for one in line if one.module.startswith("verl."))
            if verls:
                yield Ours(module, node, tuple(one for one in line if one not in verls), verls)


def overridden() -> dict[str, dict[str, str | None]]:
    """Return, by base class in verl, the names of the overridden methods and the parameters of verl's methods."""
    found: dict[str, dict[str, str | None]] = defaultdict(dict)
    for module in modules():
        for our in classes(module):
            methods = {name for one in our.ours for name, own in own_members(one).items() if is_function(own.node)}
            for name in methods:
                if any(name in own_members(one) for one in our.verls):
                    verls = find(f"{our.base}.{name}")
                    assert verls is not None
                    found[our.base][name] = parameters(verls.node)
    return dict(found)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


if __name__ == "__main__":
    lock = Path(contract.__file__).with_name("overridden.json")
    lock.write_text(json.dumps(overridden(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
