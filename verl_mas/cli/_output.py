"""The console of the commands."""

from __future__ import annotations

import sys

from rich.console import Console

# Columns in a pipe or a file, where lines are not wrapped so that `grep` finds them.
UNWRAPPED = 10_000


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else UNWRAPPED)
