"""Check that an installed vLLM or SGLang has the names that verl-mas uses; `names.yaml` lists these names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from verl_contract.sources import Definition, find, takes

from verl_mas.util import read_yaml

# Class or module -> name -> arguments that verl-mas passes to it; None: verl-mas only reads the name.
Names = Mapping[str, Mapping[str, Sequence[str] | None]]


@dataclass(frozen=True)
class Used:
    used: Names
    needs: Mapping[str, Names]  # Feature -> names that it uses in addition to `used`, which every run needs


@cache
def names() -> Mapping[str, Used]:
    read = read_yaml(Path(__file__).with_name("names.yaml"))
    return {package: Used(**entry) for package, entry in read.items()}


def missing(names: Names) -> Iterator[str]:
    """Yield an error for each name that the installed engine lacks, or that does not take the passed arguments."""
    for owner, members in names.items():
        for name, passed in members.items():
            path = f"{owner}.{name}" if ":" in owner else f"{owner}:{name}"
            if (found := find(path)) is None:
                yield f"{path} is missing"
            elif passed is not None and (why := _refused(found, passed)):
                yield f"{path} {why}"


def _refused(found: Definition, passed: Sequence[str]) -> str:
    """Return why a function or a class does not take these arguments; an empty string if it takes them."""
    known = takes(found)
    if unknown := [name for name in passed if name not in known]:
        return f"does not take {', '.join(unknown)}"
    needed = [name for name, required in known.items() if required and name not in passed]
    return f"also needs {', '.join(needed)}" if needed else ""
