"""How the commands write."""

from __future__ import annotations

import sys

from rich.console import Console

# In a pipe or a file nothing is wrapped: lines are for `grep`.
UNWRAPPED = 10_000


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else UNWRAPPED)
