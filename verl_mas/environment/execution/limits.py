"""Limits of a program, and the results of programs and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from verl_mas.config.values import Count, Positive, Range, check_fields

# A value that a call takes or returns: None, bool, int, float, complex, str, bytes, and lists, tuples, sets and dicts
# of these.
Plain = object


@dataclass(frozen=True)
class Limits:
    """Limits of one program. If `wall_s` is None, it is three times the CPU time plus two seconds."""

    cpu_s: Positive = 2.0
    wall_s: Positive | None = None
    memory_mb: Annotated[int, Range(1, 1_000_000)] = 256
    output_bytes: Count = 65_536
    threads: Count = 64

    def __post_init__(self) -> None:
        check_fields(self, "limits")

    @property
    def seconds(self) -> float:
        """Seconds after which the program is ended, whatever it does."""
        return 3 * self.cpu_s + 2 if self.wall_s is None else self.wall_s


DEFAULT = Limits()


class Status(Enum):
    """How a program ended."""

    OK = "ok"  # it ended by itself, with exit code 0
    ERROR = "error"  # an uncaught exception, or another exit code
    SYNTAX_ERROR = "syntax error"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"
    KILLED = "killed"  # a signal ended it before it reached a limit


@dataclass(frozen=True)
class Result:
    """How a program ended and what it printed; bytes that are not UTF-8 are replaced."""

    status: Status
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    exit_code: int | None = None

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def last_line(self) -> str | None:
        """The last line printed; None if the program failed or printed nothing."""
        lines = self.stdout.strip().splitlines()
        return lines[-1].strip() if lines and self.ok else None

    @property
    def error(self) -> str | None:
        """The reason why the program failed, in one line for a prompt; None if it did not fail."""
        if self.ok:
            return None
        lines = self.stderr.strip().splitlines()
        return f"{self.status.value}: {lines[-1].strip()}" if lines else self.status.value


@dataclass(frozen=True)
class Call:
    """A call of a function that the program defines. "Class.method" is called on an object made without arguments."""

    function: str
    args: Sequence[Plain] = ()
    kwargs: Mapping[str, Plain] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The plain value that a call returned. If there is no value, `error` is the reason."""

    value: Plain = None
    error: str | None = None
