"""The Hydra groups that `+mas=...` and `+platform=...` name. Hydra warns of a folder that is no package.

A package adds files to them by an entry point of the group `verl_mas.hydra`, whose value is a package with folders of
YAML: `mas/`, `recipe/`, ...
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from verl_mas.registry import installed


def packages() -> list[str]:
    """The packages with files of the groups: ours first."""
    return [__name__, *(point.value for point in installed("verl_mas.hydra"))]


def group_files(group: str) -> dict[str, Path]:
    """The files of a group in all packages, as `+<group>=` names them. Of two with one name Hydra reads the first."""
    found: dict[str, Path] = {}
    for package in reversed(packages()):
        folder = Path(str(files(package))) / group
        found |= {file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.yaml")}
    return dict(sorted(found.items()))
