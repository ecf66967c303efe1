"""Output of the commands: a console, wrapped text, and JSON in one style.

With `--json` a command writes only one object to stdout. Its names are in snake_case, its sections are objects by name,
and ordered content is in lists. A command that refuses its arguments writes `{"accepted": false, "errors": [...]}` with
`value`, `rule` and `fix` of each error, as `verl-mas check` does. It then exits with 1, or with 2 if the command line
cannot be parsed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from verl_mas.errors import ConfigErrors, InvalidInput, MasError

if TYPE_CHECKING:
    from rich.console import Console

# Width of the console in a pipe or a file, unless COLUMNS is set. It is so large that no line is wrapped, and `grep`
# finds whole lines.
UNWRAPPED = 10_000


def console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else UNWRAPPED)


def wrapped(text: str) -> str:
    """Wrap a text to the width of the terminal, or 80 columns in a pipe. Lines are broken only at spaces, so settings
    stay whole."""
    width, lines = shutil.get_terminal_size().columns, []
    for line in text.splitlines():
        after = " " * (len(line) - len(line.lstrip()) + 4)
        wrapper = textwrap.TextWrapper(width, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
        lines += wrapper.wrap(line) or [""]
    return "\n".join(lines)


def write_json(found: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(found, indent=1, default=str) + "\n")


def show(options: argparse.Namespace, found: Mapping[str, object], text: str) -> None:
    """Print the result of a command: the object with `--json`, else the text."""
    if options.json:
        write_json(found)
    else:
        console().print(text, end="", markup=False, highlight=False, emoji=False)


def refusal(error: MasError) -> dict[str, object]:
    errors = error.errors if isinstance(error, ConfigErrors) else [error]
    listed = [
        {"value": one.value, "rule": one.rule, "fix": one.fix} if isinstance(one, InvalidInput) else {"value": str(one)}
        for one in errors
    ]
    return {"accepted": False, "errors": listed}
