"""What a workflow asks of whatever runs a model's program, and how that is found."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from verl_mas.errors import ConfigError
from verl_mas.registry import Registry


@dataclass(frozen=True)
class RunResult:
    """What a program printed, or why it did not run to its end."""

    output: str = ""
    error: str | None = None

    @property
    def last_line(self) -> str | None:
        """The answer of a program that prints it last."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines and self.error is None else None


class Executor(Protocol):
    """Must bound the program's time, memory and reach itself: a model wrote it."""

    async def __call__(self, code: str, /) -> RunResult: ...


EXECUTORS: Registry[Executor] = Registry("executor", package="verl_mas.execution.executors", group="verl_mas.executors")
SETTING = "mas.workflow.args.executor"

E = TypeVar("E", bound=Executor)


def register_executor(name: str) -> Callable[[E], E]:
    """Register an async function `code -> RunResult` that bounds the program's time, memory and reach."""
    return EXECUTORS.register(name)  # type: ignore[return-value]


def executor(name: str | None) -> Executor:
    """The executor of a registered name, or the async function at "package.module:function".

    There is no default, since running a model's code is a decision.
    """
    if name is None:
        raise ConfigError(
            f"{SETTING} is not set",
            rule="the tool user's programs are run by a sandbox of your choice",
            fix='set it to "package.module:function"; verl_mas.execution.executor says what it must do',
        )
    return _at(name) if ":" in name else EXECUTORS.find(name, SETTING)


def _at(name: str) -> Executor:
    module, _, attribute = name.partition(":")
    try:
        found: Executor = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError(f"a {type(found).__name__} cannot be called")
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{SETTING}={name}: {error}",
            rule='code runs in an async function `code -> RunResult`, named as "package.module:function"',
            fix="name a sandbox that bounds time, memory, files and network",
        ) from error
    return found
