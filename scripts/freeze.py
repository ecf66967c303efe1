"""Write versions/constraints.txt: the installed version of each package that the project and its extra `dev` require.

    pip install uv
    python scripts/freeze.py

Run it with the environment's Python after an upgrade that passed the tests. Other installed packages are skipped. The
requirements are read from pyproject.toml, because the metadata of an editable install can be older than that file. If
the tested version of a package has no build for an older Python, uv resolves the version that this Python gets.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
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
HEADER = "# The set that is tested, and what older Pythons get in its place. Made by scripts/freeze.py.\n"
NOT_PINNED = {"pip", "setuptools", "wheel"}
# Requirements of torch's GPU builds. They are not pinned here, because torch pins them, and the tested CPU build has
# none of them.
OF_CUDA = ("cuda-", "nvidia-", "triton")
SUPPORTED = [f"3.{minor}.{micro}" for minor in (10, 11, 12) for micro in range(30)]
OLDEST = "3.10"


def direct() -> list[Requirement]:
    """Return the direct requirements of the project and of its extra `dev`, which includes other extras."""
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
    """Return the direct requirements that are not installed. Their own requirements cannot be read."""
    installed = {canonicalize_name(one.name) for one in needed()}
    return {one.name for one in direct() if canonicalize_name(one.name) not in installed}


def needed() -> list[Distribution]:
    """Return the installed direct and indirect requirements of the project with its extra `dev`."""
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
                # pip did not install this package either: it is for another platform, but has no marker.
                continue
            todo.extend(_required(found[name], extra))
    return [one for name, one in found.items() if name not in NOT_PINNED]


def _required(one: Distribution, extra: str) -> Iterator[Requirement]:
    for line in one.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def since(one: Distribution) -> str:
    """Return the oldest Python that the installed version supports."""
    return next(SpecifierSet(one.metadata["Requires-Python"] or "").filter(SUPPORTED)).removesuffix(".0")


def line(one: Distribution) -> str:
    python = since(one)
    marker = "" if python == OLDEST else f' ; python_full_version >= "{python}"'
    # Remove torch's local version (+cpu), so that the file also works on a GPU machine.
    return f"{one.metadata['Name']}=={Version(one.version).public}{marker}"


def resolved(python: str, constraints: str) -> dict[str, str]:
    """Resolve the project and its extra `dev` for this version of Python. Return package name -> version."""
    command = [
        "uv",
        "pip",
        "compile",
        "--extra",
        "dev",
        "pyproject.toml",
        "--constraint",
        "-",
        "--python-version",
        python,
    ]
    style = ["--no-annotate", "--no-header", "--quiet"]
    done = subprocess.run(
        [*command, *style], cwd=ROOT, input=constraints, check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(each.split("==") for each in done.stdout.splitlines())


def for_older(tested: Mapping[str, Distribution], constraints: str) -> Iterator[str]:
    """Yield the lines for older Pythons.

    These are packages whose tested version has no build for an older Python, and packages that only older Pythons need.
    """
    for name, version in resolved(OLDEST, constraints).items():
        one = tested.get(name)
        spelled, end = (one.metadata["Name"], since(one)) if one else (name, "3.11")
        if end != OLDEST and not name.startswith(OF_CUDA) and name not in NOT_PINNED:
            yield f'{spelled}=={version} ; python_full_version < "{end}"'


def main() -> None:
    tested = {canonicalize_name(one.metadata["Name"]): one for one in needed()}
    pins = [line(one) for one in tested.values()]
    pins += for_older(tested, "\n".join(pins))
    (ROOT / "versions/constraints.txt").write_text(HEADER + "\n".join(sorted(pins, key=str.lower)) + "\n")


if __name__ == "__main__":
    if missing := absent():
        sys.exit(f"not installed: {', '.join(sorted(missing))}\n  fix:  pip install --editable '.[dev]'")
    main()
