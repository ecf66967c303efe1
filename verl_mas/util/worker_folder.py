"""The current folder of a run's workers.

Ray starts workers in the folder in which `ray start` was called. So in an existing cluster, a relative path in a
worker would name a different file than in the user's command.
"""

import os

# The environment variable with the folder of the command; `verl_mas.config.cluster` sets it for workers.
VARIABLE = "VERL_MAS_FOLDER"


def enter() -> None:
    """Change to the folder of the command, if this node has it. Without the variable, do nothing."""
    # Remove the variable, so that a program that a worker starts in another folder stays in that folder.
    folder = os.environ.pop(VARIABLE, "")
    if os.path.isdir(folder):
        os.chdir(folder)
