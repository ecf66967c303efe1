"""How checks report: a check is a generator of problems, and the errors of all checks are raised as one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from omegaconf.errors import OmegaConfBaseException

from verl_mas.errors import ConfigError, ConfigWarning, InvalidInput, MasError, raise_all

T = TypeVar("T")

# What a check yields: an error refuses the run, a warning is shown.
Problem = ConfigError | ConfigWarning

PACKAGE = str(Path(__file__).parents[1])


class Refusals:
    """Collects problems, so that a user can fix them together. An exception in a check is an error, too."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []
        self.warnings: list[ConfigWarning] = []

    def of(self, *checks: Iterable[Problem]) -> bool:
        """Run checks; whether none of them found an error, for checks that depend on them."""
        before = len(self.errors)
        for check in checks:
            try:
                for problem in check:
                    if isinstance(problem, ConfigWarning):
                        self.warnings.append(problem)
                    else:
                        self.errors.append(problem)
            except Exception as error:  # noqa: BLE001  # a check that fails to run is an error, not a pass
                self.errors.append(as_refusal(error))
        return len(self.errors) == before

    def require(self, function: Callable[[], T]) -> T:
        """The result of a function that later checks need. If it raises, all errors so far are raised with it."""
        try:
            return function()
        except Exception as error:
            self.errors.append(as_refusal(error))
            self.raise_all()
            raise

    def raise_all(self) -> None:
        """Raise all errors. Policies share settings, so the same error may occur once per policy; it is raised once."""
        raise_all({str(error): error for error in self.errors}.values())


def as_refusal(error: Exception) -> ConfigError:
    """An exception of a check as a ConfigError."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, InvalidInput):
        return ConfigError(error.value, rule=error.rule, fix=error.fix)
    if isinstance(error, OmegaConfBaseException):
        return unresolved(error)
    trace = "".join(traceback.format_exception(error)).rstrip()
    return ConfigError(
        f"a check raised {_name(error)}\n{trace}",
        rule="a check that fails to run has checked nothing, so the run does not start",
        fix="correct the value that the traceback shows, or report it as a bug of verl-mas",
    )


def unresolved(error: OmegaConfBaseException) -> ConfigError:
    """A value that OmegaConf cannot resolve, such as an interpolation of a key that does not exist."""
    key = error.full_key
    return ConfigError(
        (f"{key}: " if key else "") + str(error.msg or error).splitlines()[0],
        rule="every value of the configuration can be resolved",
        fix=f"set {key}, or correct what it refers to" if key else "correct the value",
    )


def raised_by(function: Callable[..., object], *arguments: object) -> Iterator[ConfigError]:
    """A check that raises, such as that of a workflow or an engine, as a check that yields."""
    try:
        with user_code():
            function(*arguments)
    except MasError as error:
        yield as_refusal(error)


@contextmanager
def user_code() -> Iterator[None]:
    """The boundary around user code: its exceptions become errors with file, line and the traceback from there."""
    try:
        yield
    except MasError:
        raise
    except Exception as error:
        trace = traceback.TracebackException.from_exception(error)
        user_frames = [frame for frame in trace.stack if not _ours(frame.filename)]
        # Without a frame of user code, the exception is about how we call it; a SyntaxError has no frame.
        if user_frames or isinstance(error, SyntaxError):
            trace.stack = traceback.StackSummary.from_list(user_frames)
        place = _place(error, trace.stack)
        raise ConfigError(
            f"{place}: {_name(error)}\n{''.join(trace.format()).rstrip()}",
            rule="the file of a workflow, its `agents` and its `check` raise no exception before Ray starts",
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
