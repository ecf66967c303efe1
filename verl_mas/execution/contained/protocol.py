"""Messages between the caller and the fork server. Programs, input and output are files in memory and pass by it."""

from __future__ import annotations

import json
from typing import NamedTuple

# Descriptors of a program: its input, output, errors, the program itself, and for calls the answers.
STDIN, STDOUT, STDERR, PROGRAM, ANSWERS = range(5)
MAX_MESSAGE = 65_536
YES = "yes"  # of a layer that is active; otherwise the reason

# Exit codes of a program that did not compile and of one that ended with a MemoryError. A program that exits with one
# of them is taken for such a program.
NOT_COMPILED, NO_MEMORY = 251, 250


class Job(NamedTuple):
    """A program to run; what is not limited is sent beside it as descriptors. Its number alone asks to end it."""

    number: int
    cpu_s: float
    wall_s: float
    memory: int
    file_size: int
    threads: int


class ProgramEnd(NamedTuple):
    """How a program ended. `reason` is one of the three below; `status` is that of wait(2), or of a fork an errno."""

    number: int
    reason: int
    status: int
    seconds: float
    cpu_seconds: float
    memory: int


BY_ITSELF, BY_LIMIT, NOT_STARTED, ON_REQUEST = range(4)


def pack(message: Job | ProgramEnd | int) -> bytes:
    return json.dumps(message).encode()
