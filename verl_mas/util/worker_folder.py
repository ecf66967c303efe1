"""The current folder of a run's workers.

Ray starts workers in the folder of `ray start`, so on a cluster that runs already a relative path would mean another
file there than in the command.
"""

from __future__ import annotations

import os

# The environment variable with the folder of the command; `verl_mas.config.cluster` sets it for workers.
VARIABLE = "VERL_MAS_FOLDER"


def enter() -> None:
    """Go to the folder of the command, where this node has it. Without the variable it does nothing."""
    # Removed, so that a program which a worker starts elsewhere stays there.
    folder = os.environ.pop(VARIABLE, "")
    if os.path.isdir(folder):
        os.chdir(folder)
