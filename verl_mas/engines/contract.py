"""The versions of vLLM and SGLang that verl-mas was compared with, as data in `contract.yaml`, and how an installed one
differs.

`scripts/engine_names` has the names that it uses of them. A nightly test compares both with the wheels of these
versions. Sources are read, not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from packaging.version import Version

from verl_mas.util import installed_version, read_yaml
from verl_mas.verl_.sources import Definition, ancestors, find, parameters


@dataclass(frozen=True)
class Contract:
    package: str
    tested: tuple[str, str]  # The versions between which the names were compared
    needs: Mapping[str, str] = field(default_factory=dict)  # Feature -> the first version that has what it uses
    dataclasses: Sequence[str] = ()  # Classes whose fields verl reads with `dataclasses.fields`
    wheel: str = ""

    @property
    def untested(self) -> str | None:
        """The installed version, where it is outside of those that were compared."""
        installed = installed_version(self.package)
        oldest, newest = map(Version, self.tested)
        return installed if installed and not oldest <= Version(Version(installed).public) <= newest else None

    @property
    def unstartable(self) -> str:
        """Why verl cannot start the installed version; empty if nothing is known against it."""
        others = [path for path in self.dataclasses if (found := find(path)) and not is_dataclass(found)]
        return f"verl 0.9.1 reads the fields of {others[0]}, and there it is not a dataclass" if others else ""

    @property
    def standing(self) -> str:
        """How the installed version relates to those that were compared."""
        if self.unstartable:
            return f"not usable: {self.unstartable}"
        if self.untested:
            return f"not compared, as {self.tested[0]} to {self.tested[1]} are"
        pinned = Version(installed_version(self.package) or self.tested[0]).public == self.tested[0]
        return "the version that verl pins" if pinned else "newer than verl pins, compared by names"

    @property
    def lacks(self) -> dict[str, str]:
        """Feature -> why the engine cannot do it, if so. An engine that is not installed is what verl pins."""
        version = installed_version(self.package) or self.tested[0]
        why = f"{self.package} has what it needs from {{}} on, and this is {version} (docs/gpu-quickstart.md)"
        return {name: why.format(since) for name, since in self.needs.items() if Version(version) < Version(since)}


@cache
def contracts() -> Mapping[str, Contract]:
    read = read_yaml(Path(__file__).with_suffix(".yaml"))
    return {package: Contract(package, **entry) for package, entry in read.items()}


def lacking(engine: str) -> dict[str, str]:
    """Feature -> why an engine of verl cannot do it, as far as that is known."""
    return contracts()[engine].lacks if engine in contracts() else {}


def is_dataclass(found: Definition) -> bool:
    """Whether a class, or one that it inherits from, is decorated as one."""
    decorators = [each for line in ancestors(found) for each in getattr(line.node, "decorator_list", [])]
    return any("dataclass" in ast.unparse(each) for each in decorators)


def takes(found: Definition) -> dict[str, bool]:
    """The parameters of a function, or the fields of a class that is made of them, and whether each is required."""
    if isinstance(found.node, ast.ClassDef):
        lines = [node for own in reversed(ancestors(found)) for node in getattr(own.node, "body", [])]
        fields = [node for node in lines if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
        return {ast.unparse(node.target): node.value is None for node in fields}
    given = [name for name in (parameters(found.node) or "").split(", ") if name and not name.startswith("*")]
    return {name.rstrip("="): not name.endswith("=") for name in given if name != "self"}
