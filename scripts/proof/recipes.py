"""Composes and checks every GPU recipe as for a machine with 8 GPUs. Exit code 1 if one is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import verl_mas
from verl_mas.checks.run import examine_command

MACHINE = ["++ray_kwargs.ray_init.num_gpus=8", "++ray_kwargs.ray_init.num_cpus=128"]
NOT_FOR_GPUS = {"laptop", "common", "roles"}
# A search team's retriever is started before the run; here it is not.
RETRIEVER = "the retriever at "


def main() -> int:
    folder = Path(verl_mas.__file__).parent / "config/hydra/recipe"
    names = sorted(
        f"{file.parent.name}/{file.stem}" for file in folder.glob("*/*.yaml") if file.stem not in NOT_FOR_GPUS
    )
    refused = 0
    for name in names:
        errors = [
            error
            for error in examine_command([f"+recipe={name}", *MACHINE]).errors
            if not error.value.startswith(RETRIEVER)
        ]
        refused += bool(errors)
        sys.stdout.write(f"{name}: {'refused' if errors else 'accepted'}\n" + "".join(f"{error}\n" for error in errors))
    return int(bool(refused) or not names)


if __name__ == "__main__":
    sys.exit(main())
