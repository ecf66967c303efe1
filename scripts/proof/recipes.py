"""Composes and checks the command in the head of every GPU recipe, for two machines with 8 GPUs of 80 GB each.

The exit code is 1 if a command is refused. The checks do not look for data and engines, because only the machines of
a run have them.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import verl_mas
from verl_mas.checks.run import examine_command
from verl_mas.planning.hardware import parse_gpus

MACHINES = parse_gpus("2x8x80")
NOT_FOR_GPUS = ("laptop", "common", "roles")  # prefixes of file names


def refusals(recipe: Path) -> list[str]:
    words = re.findall(r"^# python -m verl\.trainer\.main_ppo (.+)$", recipe.read_text(), re.MULTILINE)[0].split()
    return [str(error) for error in examine_command(words, MACHINES).errors]


def main() -> int:
    folder = Path(verl_mas.__file__).parent / "config/hydra/recipe"
    files = sorted(file for file in folder.glob("*/*.yaml") if not file.stem.startswith(NOT_FOR_GPUS))
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as processes:
        found = dict(zip(files, processes.map(refusals, files), strict=True))
    for file, errors in found.items():
        verdict = f"{file.parent.name}/{file.stem}: {'refused' if errors else 'accepted'}\n"
        sys.stdout.write(verdict + "".join(f"{error}\n" for error in errors))
    return int(any(found.values()) or not found)


if __name__ == "__main__":
    sys.exit(main())
