"""What the caller and the process of a program agree on. Programs, input and output are files in memory."""

from __future__ import annotations

from typing import NamedTuple

# Descriptors of a program: its input, output, errors, the program itself, and for calls the answers.
STDIN, STDOUT, STDERR, PROGRAM, ANSWERS = range(5)
YES = "yes"  # of a layer that is active; otherwise the reason

# Exit codes of a program that did not compile and of one that ended with a MemoryError. A program that exits with one
# of them is taken for such a program.
NOT_COMPILED, NO_MEMORY = 251, 250


class Job(NamedTuple):
    """The limits of a program beside its seconds; `cpu_s` is also a limit of the kernel."""

    cpu_s: float
    memory: int
    file_size: int
    threads: int
