"""What the commands write: a console, files, and JSON in one style.

With `--json` a command writes one object to stdout and nothing else: names in snake_case, sections as objects by name,
lists for what has an order. A command that refuses its arguments writes `{"accepted": false, "errors": [...]}` with
`value`, `rule` and `fix` of each error, as `verl-mas check` does, and the exit code is 1 (2 for the command line).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.errors import ConfigErrors, InvalidInput, MasError

if TYPE_CHECKING:
    from rich.console import Console

# Columns in a pipe or a file, where lines are not wrapped so that `grep` finds them.
UNWRAPPED = 10_000


def console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else UNWRAPPED)


def write_json(found: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(found, indent=1, default=str) + "\n")


def write_text(out: Path, text: str) -> None:
    """A file that is there as a whole or not at all."""
    from verl_mas.run_folder.disk import write_whole, writing

    with writing(out, "the file is written as a whole"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text)


def say_written(paths: Iterable[Path], *, as_json: bool, then: str = "") -> None:
    """What a command wrote: a line per file, or its JSON."""
    files = list(map(str, paths))
    if as_json:
        write_json({"written": files})
    else:
        sys.stdout.write("".join(f"{line}\n" for line in [*files, *([then] if then else [])]))


def refusal(error: MasError) -> dict[str, object]:
    """A refused command as its JSON."""
    errors = error.errors if isinstance(error, ConfigErrors) else [error]
    return {"accepted": False, "errors": [_error(one) for one in errors]}


def _error(error: MasError) -> dict[str, str]:
    if isinstance(error, InvalidInput):
        return {"value": error.value, "rule": error.rule, "fix": error.fix}
    return {"value": str(error)}
