"""Writes constraints.txt: the exact versions, in this environment, of what the project and its extra `dev` require.

Run it with the environment's Python after an upgrade that passed the tests. Other packages are left out.
"""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

HEADER = "# The set that is tested. Made by scripts/freeze.py; a line with a marker has no build for older Pythons.\n"
PROJECT = "verl-mas[dev]"
NOT_PINNED = {"verl-mas", "pip", "setuptools", "wheel"}
OLDEST = Version("3.10")


def needed() -> list[Distribution]:
    """The installed direct and indirect requirements of PROJECT."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [Requirement(PROJECT)]
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
    pins = sorted({line(one) for one in needed()}, key=str.lower)
    Path(__file__).parents[1].joinpath("constraints.txt").write_text(HEADER + "\n".join(pins) + "\n")
