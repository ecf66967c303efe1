"""Files of the Hydra groups, such as `+mas=...` and `+platform=...`. This folder is a package, because Hydra warns
about folders that are not packages.

Another package adds files to the Hydra groups by an entry point of `verl_mas.hydra`. The value of the entry point is a
package with folders of YAML files: `mas/`, `recipe/`, ...
"""

from importlib.resources import files
from pathlib import Path

from verl_mas.config.registry import installed


def packages() -> list[str]:
    """List the packages with files of the Hydra groups; this package comes first."""
    return [__name__, *(point.value for point in installed("verl_mas.hydra"))]


def group_files(group: str) -> dict[str, Path]:
    """Map the names of a group, as in `+<group>=<name>`, to the files of all packages. If two files have the same name,
    Hydra reads the first one."""
    found: dict[str, Path] = {}
    for package in reversed(packages()):
        folder = Path(str(files(package))) / group
        found |= {file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.yaml")}
    return dict(sorted(found.items()))
