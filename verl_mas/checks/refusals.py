"""How checks report. A check is a generator of errors; all that the checks find is raised as one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from omegaconf.errors import OmegaConfBaseException

from verl_mas.errors import ConfigError, InvalidInput, MasError, raise_all

T = TypeVar("T")

PACKAGE = str(Path(__file__).parents[1])


class Refusals:
    """Collects errors, so that a user can fix them in one go. An exception in a check is an error, too."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def of(self, *checks: Iterable[ConfigError]) -> bool:
        """Runs checks; whether all of them passed, for the checks that rely on it."""
        before = len(self.errors)
        for check in checks:
            try:
                for error in check:
                    self.errors.append(error)
            except Exception as error:
                self.errors.append(as_refusal(error))
        return len(self.errors) == before

    def require(self, function: Callable[[], T]) -> T:
        """What a function returns. Where it raises, nothing more can be checked: all that was found is raised."""
        try:
            return function()
        except Exception as error:
            self.errors.append(as_refusal(error))
            self.raise_all()
            raise

    def raise_all(self) -> None:
        """Policies share settings, so one mistake may be found once per policy; it is shown once."""
        raise_all({str(error): error for error in self.errors}.values())


def as_refusal(error: Exception) -> ConfigError:
    """An exception of a check, as an error for its reader."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, InvalidInput):
        return ConfigError(error.value, rule=error.rule, fix=error.fix)
    if isinstance(error, OmegaConfBaseException):
        return unresolved(error)
    trace = "".join(traceback.format_exception(error)).rstrip()
    return ConfigError(
        f"a check raised {_name(error)}\n{trace}",
        rule="a check that fails has not checked anything, so the run does not start",
        fix="report this with its traceback, unless it shows a wrong value of yours",
    )


def unresolved(error: OmegaConfBaseException) -> ConfigError:
    """A value that OmegaConf cannot give, such as an interpolation of a key that does not exist."""
    key = error.full_key
    return ConfigError(
        (f"{key}: " if key else "") + str(error.msg or error).splitlines()[0],
        rule="every value of the configuration can be resolved",
        fix=f"set {key}, or correct what it refers to" if key else "correct the value",
    )


def raised_by(function: Callable[..., object], *arguments: object) -> Iterator[ConfigError]:
    """A check that raises, such as one of a user's workflow or engine, as a check that yields."""
    try:
        with user_code():
            function(*arguments)
    except MasError as error:
        yield as_refusal(error)


@contextmanager
def user_code() -> Iterator[None]:
    """Around code that is not ours: what it raises is refused with its place, and the traceback from there on."""
    try:
        yield
    except MasError:
        raise
    except Exception as error:
        trace = traceback.TracebackException.from_exception(error)
        theirs = [frame for frame in trace.stack if not _ours(frame.filename)]
        # An exception that none of their frames raised is about how we call them; a SyntaxError has no frame.
        if theirs or isinstance(error, SyntaxError):
            trace.stack = traceback.StackSummary.from_list(theirs)
        place = _place(error, trace.stack)
        raise ConfigError(
            f"{place}: {_name(error)}\n{''.join(trace.format()).rstrip()}",
            rule="a workflow's file, its `agents` and its `check` run without an exception before Ray starts",
            fix=f"correct {place}",
        ) from error


def _ours(filename: str) -> bool:
    return filename.startswith(PACKAGE) or "importlib" in filename


def _place(error: Exception, stack: traceback.StackSummary) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    return f"{stack[-1].filename}, line {stack[-1].lineno}"


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
