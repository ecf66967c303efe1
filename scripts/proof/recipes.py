"""Composes and checks every GPU recipe as for a machine with 8 GPUs. Exit code 1 if one is refused.

What only a machine of the run can have, such as data and engines, is not looked for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import verl_mas
from verl_mas.checks.run import examine_command
from verl_mas.errors import ConfigError
from verl_mas.planning.hardware import parse_gpus

MACHINE = parse_gpus("8x80")
NOT_FOR_GPUS = {"laptop", "common", "roles"}


def refusals(name: str) -> list[ConfigError]:
    return examine_command([f"+recipe={name}"], MACHINE).errors


def main() -> int:
    folder = Path(verl_mas.__file__).parent / "config/hydra/recipe"
    names = sorted(
        f"{file.parent.name}/{file.stem}" for file in folder.glob("*/*.yaml") if file.stem not in NOT_FOR_GPUS
    )
    found = {name: refusals(name) for name in names}
    for name, errors in found.items():
        sys.stdout.write(f"{name}: {'refused' if errors else 'accepted'}\n" + "".join(f"{error}\n" for error in errors))
    return int(any(found.values()) or not found)


if __name__ == "__main__":
    sys.exit(main())
