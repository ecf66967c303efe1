"""Writes constraints.txt: the exact versions, in this environment, of what the project and its extra `dev` require.

Run it with the environment's Python after an upgrade that passed the tests. Other packages are left out. What the
project requires is read from pyproject.toml: the metadata of an editable install are as old as the install.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
HEADER = "# The set that is tested. Made by scripts/freeze.py; a line with a marker has no build for older Pythons.\n"
NOT_PINNED = {"pip", "setuptools", "wheel"}
OLDEST = Version("3.10")


def direct() -> list[Requirement]:
    """What the project and its extra `dev` name, with the extras that `dev` is made of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(line) for line in project["dependencies"]]
    extras = ["dev"]
    while extras:
        for line in project["optional-dependencies"][extras.pop()]:
            one = Requirement(line)
            if one.name == project["name"]:
                extras.extend(one.extras)
            else:
                found.append(one)
    return found


def absent() -> set[str]:
    """Direct requirements that are not installed. Then what they require is unknown."""
    installed = {canonicalize_name(one.name) for one in needed()}
    return {one.name for one in direct() if canonicalize_name(one.name) not in installed}


def needed() -> list[Distribution]:
    """The installed direct and indirect requirements of the project with its extra `dev`."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = direct()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                # pip did not install it either: a requirement of another platform without a marker.
                continue
            todo.extend(_required(found[name], extra))
    return [one for name, one in found.items() if name not in NOT_PINNED]


def _required(one: Distribution, extra: str) -> Iterator[Requirement]:
    for line in one.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def line(one: Distribution) -> str:
    python = SpecifierSet(one.metadata["Requires-Python"] or "")
    oldest = next(v for v in ("3.10", "3.11", "3.12") if python.contains(f"{v}.20"))
    marker = "" if Version(oldest) == OLDEST else f' ; python_version >= "{oldest}"'
    # Without torch's local version (+cpu), so that the file also works on a GPU machine.
    return f"{one.metadata['Name']}=={Version(one.version).public}{marker}"


if __name__ == "__main__":
    if missing := absent():
        sys.exit(f"not installed: {', '.join(sorted(missing))}\n  fix:  pip install --editable '.[dev]'")
    pins = sorted({line(one) for one in needed()}, key=str.lower)
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(pins) + "\n")
