"""What verl-mas relies on in vLLM and SGLang, as data in `contract.yaml`, and how an installed engine differs from it.

Sources are read, not imported. A nightly test compares the data with the wheels of the versions that it names, and with
what this package uses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from packaging.version import Version

from verl_mas.util import installed_version, read_yaml
from verl_mas.verl_.sources import Definition, ancestors, file_of, find, parameters

# Class or module -> name -> what is passed to it; None: it is only read.
Names = Mapping[str, Mapping[str, Sequence[str] | None]]


@dataclass(frozen=True)
class Need:
    """What a feature uses of an engine beyond what every run does."""

    names: Names
    since: str  # The first version that has it


@dataclass(frozen=True)
class Contract:
    package: str
    tested: tuple[str, str]  # The versions between which the names were compared
    used: Names
    needs: Mapping[str, Need] = field(default_factory=dict)
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
        here, version = file_of(self.package), installed_version(self.package) or self.tested[0]

        def lacks(need: Need) -> bool:
            return any(missing(need.names)) if here else Version(need.since) > Version(self.tested[0])

        why = f"{self.package} has what it needs from {{}} on, and this is {version} (docs/gpu-quickstart.md)"
        return {name: why.format(need.since) for name, need in self.needs.items() if lacks(need)}


@cache
def contracts() -> Mapping[str, Contract]:
    read = read_yaml(Path(__file__).with_suffix(".yaml"))
    return {
        package: Contract(package, **{**entry, "needs": {name: Need(**need) for name, need in entry["needs"].items()}})
        for package, entry in read.items()
    }


def lacking(engine: str) -> dict[str, str]:
    """Feature -> why an engine of verl cannot do it, as far as that is known."""
    return contracts()[engine].lacks if engine in contracts() else {}


def missing(names: Names) -> Iterator[str]:
    """What the installed engine does not have, or does not take as we pass it."""
    for owner, members in names.items():
        for name, passed in members.items():
            path = f"{owner}.{name}" if ":" in owner else f"{owner}:{name}"
            if (found := find(path)) is None:
                yield f"{path} is missing"
            elif passed is not None and (why := _refused(found, passed)):
                yield f"{path} {why}"


def is_dataclass(found: Definition) -> bool:
    """Whether a class, or one that it inherits from, is decorated as one."""
    decorators = [each for line in ancestors(found) for each in getattr(line.node, "decorator_list", [])]
    return any("dataclass" in ast.unparse(each) for each in decorators)


def _refused(found: Definition, passed: Sequence[str]) -> str:
    """Why a function or a class does not take these names; empty if it does."""
    known = takes(found)
    if unknown := [name for name in passed if name not in known]:
        return f"does not take {', '.join(unknown)}"
    needed = [name for name, required in known.items() if required and name not in passed]
    return f"also needs {', '.join(needed)}" if needed else ""


def takes(found: Definition) -> dict[str, bool]:
    """The parameters of a function, or the fields of a class that is made of them, and whether each is required."""
    if isinstance(found.node, ast.ClassDef):
        lines = [node for own in reversed(ancestors(found)) for node in getattr(own.node, "body", [])]
        fields = [node for node in lines if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
        return {ast.unparse(node.target): node.value is None for node in fields}
    given = [name for name in (parameters(found.node) or "").split(", ") if name and not name.startswith("*")]
    return {name.rstrip("="): not name.endswith("=") for name in given if name != "self"}
