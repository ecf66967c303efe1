"""The seam to code execution: what a workflow asks of whatever runs a model's program."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from verl_mas.errors import ConfigError


@dataclass(frozen=True)
class Ran:
    """What a program printed, or why it did not run to its end."""

    output: str = ""
    error: str | None = None

    @property
    def last_line(self) -> str | None:
        """The answer of a program that prints it last."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines and self.error is None else None


# Must bound the program's time, memory and reach itself: a model wrote it.
Executor = Callable[[str], Awaitable[Ran]]


def executor(name: str | None) -> Executor:
    """The async function at "package.module:name"; there is no default, since running a model's code is a decision."""
    if name is None:
        raise ConfigError(
            "mas.workflow.args.executor is not set",
            rule="the tool user's programs are run by a sandbox of your choice",
            fix='set it to "package.module:function"; verl_mas.grading.code says what it must do',
        )
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError(f"a {type(found).__name__} cannot be called")
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"executor={name!r}: {error}",
            rule='code runs in an async function `code -> Ran`, named as "package.module:function"',
            fix="name a sandbox that bounds time, memory, files and network",
        ) from error
    return found
