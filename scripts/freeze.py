"""Writes constraints.txt: the exact versions of the environment this runs in, for `make install` to repeat.

Run it with the environment's Python after an upgrade that passed the tests.
"""

from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

HEADER = "# The set that is tested. Made by .ci/freeze.py; a line with a marker has no build for older Pythons.\n"
NOT_PINNED = {"verl-mas", "pip", "setuptools", "wheel"}
OLDEST = Version("3.10")


def line(dist) -> str:
    python = SpecifierSet(dist.metadata["Requires-Python"] or "")
    oldest = next(v for v in ("3.10", "3.11", "3.12") if python.contains(f"{v}.20"))
    marker = "" if Version(oldest) == OLDEST else f' ; python_version >= "{oldest}"'
    # Without torch's local version (+cpu), so that the file serves a GPU machine too.
    return f"{dist.metadata['Name']}=={Version(dist.version).public}{marker}"


pins = {line(dist) for dist in distributions() if dist.metadata["Name"].lower() not in NOT_PINNED}
Path(__file__).parents[1].joinpath("constraints.txt").write_text(HEADER + "\n".join(sorted(pins, key=str.lower)) + "\n")
