"""The interface of executors, which run programs that a model wrote, and how they are found."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from verl_mas.errors import ConfigError
from verl_mas.registry import Registry


@dataclass(frozen=True)
class RunResult:
    """What a program printed, or why it did not finish."""

    output: str = ""
    error: str | None = None

    @property
    def last_line(self) -> str | None:
        """The last line printed; None if the program failed or printed nothing."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines and self.error is None else None


class Executor(Protocol):
    """Runs a program. It must bound its time, memory and access itself, since a model wrote it."""

    async def __call__(self, code: str, /) -> RunResult: ...


EXECUTORS: Registry[Executor] = Registry("executor", package="verl_mas.execution.executors", group="verl_mas.executors")
SETTING = "mas.workflow.args.executor"

E = TypeVar("E", bound=Executor)


def register_executor(name: str) -> Callable[[E], E]:
    """Register an async function `code -> RunResult` that bounds the program's time, memory and access."""
    return EXECUTORS.register(name)  # type: ignore[return-value]


def executor(name: str | None) -> Executor:
    """The executor of a registered name, or the async function at "package.module:function".

    There is no default: running a model's code is the user's decision.
    """
    if name is None:
        raise ConfigError(
            f"{SETTING} is not set",
            rule="the tool user's programs run in a sandbox of your choice",
            fix='set it to a registered executor or "package.module:function"; see verl_mas.execution.executor',
        )
    return _at(name) if ":" in name else EXECUTORS.find(name, SETTING)


def _at(name: str) -> Executor:
    module, _, attribute = name.partition(":")
    try:
        found: Executor = getattr(importlib.import_module(module), attribute)
        # An instance with an async `__call__` is one, too.
        if not inspect.iscoroutinefunction(found) and not inspect.iscoroutinefunction(type(found).__call__):
            raise TypeError(f"{attribute} is not an async function")
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{SETTING}={name}: {error}",
            rule='an executor is an async function `code -> RunResult`, named "package.module:function"',
            fix="give a function that bounds time, memory, files and network",
        ) from error
    return found
