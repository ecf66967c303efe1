"""Versions of an engine that verl-mas was compared with, and the features that an installed version lacks.

`scripts/engine_names` lists the names in the engines' code that verl-mas uses, such as classes and parameters. A
nightly test searches the wheels of these versions for the names. The test reads the source files and does not import
them.
"""

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from verl_mas.util import installed_version


@dataclass(frozen=True)
class Contract:
    package: str
    tested: tuple[str, str]  # the version that verl pins, and the newest version that was compared
    needs: Mapping[str, str] = field(default_factory=dict)  # feature -> the first version that supports it
    # Classes whose fields verl reads with `dataclasses.fields`. If one of them is not a dataclass, verl cannot start
    # the engine.
    dataclasses: Sequence[str] = ()

    @property
    def untested(self) -> str | None:
        """The installed version if it is older or newer than the compared versions, else None."""
        installed = installed_version(self.package)
        oldest, newest = map(Version, self.tested)
        return installed if installed and not oldest <= Version(Version(installed).public) <= newest else None

    @property
    def unstartable(self) -> str:
        """The reason why verl cannot start the installed version; empty if no reason is known."""
        others = [path for path in self.dataclasses if (found := defined(path)) and not is_dataclass(found)]
        return f"verl 0.9.1 reads the fields of {others[0]}, and there it is not a dataclass" if others else ""

    @property
    def standing(self) -> str:
        """A text that says how the installed version relates to the compared versions."""
        if self.unstartable:
            return f"not usable: {self.unstartable}"
        if self.untested:
            return f"not compared, as {self.tested[0]} to {self.tested[1]} are"
        pinned = Version(installed_version(self.package) or self.tested[0]).public == self.tested[0]
        return "the version that verl pins" if pinned else "newer than verl pins, compared by names"

    @property
    def lacks(self) -> dict[str, str]:
        """The features that the installed engine lacks, each with the reason. If no engine is installed, the version
        that verl pins counts."""
        version = installed_version(self.package) or self.tested[0]
        why = f"{self.package} has what it needs from {{}} on, and this is {version} (docs/start/gpu-quickstart.md)"
        return {name: why.format(since) for name, since in self.needs.items() if Version(version) < Version(since)}


def defined(path: str) -> ast.stmt | None:
    """Find the definition of `module:name` in the source of an installed engine without importing the engine. Return
    None if there is no such definition."""
    module, _, name = path.partition(":")
    top, *rest = module.split(".")
    # `find_spec` imports nothing for a top-level package, but for a submodule it would import the package.
    spec = importlib.util.find_spec(top)
    file = Path(((spec and spec.submodule_search_locations) or [""])[0]).joinpath(*rest).with_suffix(".py")
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return next((node for node in tree.body if name in _names(node)), None)


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return {ast.unparse(target) for target in targets} | {str(getattr(node, "name", ""))}


def is_dataclass(node: ast.stmt) -> bool:
    return any("dataclass" in ast.unparse(each) for each in getattr(node, "decorator_list", ()))
