"""The names that verl-mas uses of vLLM and SGLang, as data in `names.yaml`, and what the sources of a release lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from verl_contract.sources import Definition, find, takes

from verl_mas.util import read_yaml

# Class or module -> name -> arguments that are passed to it; None: it is only read.
Names = Mapping[str, Mapping[str, Sequence[str] | None]]


@dataclass(frozen=True)
class Used:
    used: Names
    needs: Mapping[str, Names]  # Feature -> names that it uses in addition to those of every run


@cache
def names() -> Mapping[str, Used]:
    read = read_yaml(Path(__file__).with_name("names.yaml"))
    return {package: Used(**entry) for package, entry in read.items()}


def missing(names: Names) -> Iterator[str]:
    """Yield names that the installed engine lacks, and arguments that it does not take."""
    for owner, members in names.items():
        for name, passed in members.items():
            path = f"{owner}.{name}" if ":" in owner else f"{owner}:{name}"
            if (found := find(path)) is None:
                yield f"{path} is missing"
            elif passed is not None and (why := _refused(found, passed)):
                yield f"{path} {why}"


def _refused(found: Definition, passed: Sequence[str]) -> str:
    """Say why a function or a class does not take these arguments; empty if it takes them."""
    known = takes(found)
    if unknown := [name for name in passed if name not in known]:
        return f"does not take {', '.join(unknown)}"
    needed = [name for name, required in known.items() if required and name not in passed]
    return f"also needs {', '.join(needed)}" if needed else ""
