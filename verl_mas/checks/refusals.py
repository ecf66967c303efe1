"""Reports of checks: a check is a generator of problems, and the errors of all checks are raised as one."""

import asyncio
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

from omegaconf.errors import OmegaConfBaseException

from verl_mas.errors import (
    ConfigError,
    ConfigErrors,
    ConfigWarning,
    ForeignError,
    InvalidInput,
    MasError,
    foreign,
    refused_path,
)

T = TypeVar("T")

# A check yields errors, which refuse the run, and warnings, which are shown.
Problem = ConfigError | ConfigWarning

HEADER = "Traceback (most recent call last):\n"
PACKAGE = str(Path(__file__).parents[1])


class Refusals:
    """Collects problems, so that a user can fix them together. An exception in a check is an error, too.

    Policies share settings, so the same problem may occur once per policy; it is listed once.
    """

    def __init__(self) -> None:
        self._problems: dict[str, Problem] = {}

    @property
    def errors(self) -> list[ConfigError]:
        return [problem for problem in self._problems.values() if isinstance(problem, ConfigError)]

    @property
    def warnings(self) -> list[ConfigWarning]:
        return [problem for problem in self._problems.values() if isinstance(problem, ConfigWarning)]

    def of(self, *checks: Iterable[Problem]) -> bool:
        """Run checks, and return whether all passed, so that the caller can skip checks that depend on them."""
        return all([self.result(partial(self._add, check)) for check in checks])

    def result(self, function: Callable[[], T]) -> T | None:
        """Return the result of a function for later checks. An exception is collected as an error, and the result is
        None."""
        try:
            return function()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a check that fails to run is an error, not a pass
            self._add(as_refusals(error))
            return None

    def _add(self, check: Iterable[Problem]) -> bool:
        """Collect the problems of a check, and return whether none of them is an error."""
        sound = True
        for problem in check:
            self._problems[str(problem)] = problem
            sound = sound and isinstance(problem, ConfigWarning)
        return sound


def as_refusals(error: BaseException) -> Sequence[ConfigError]:
    """Convert an exception of a check to a list of errors, which has several entries only for ConfigErrors."""
    return error.errors if isinstance(error, ConfigErrors) else [as_refusal(error)]


def as_refusal(error: BaseException) -> ConfigError:
    """Convert an exception of a check to a ConfigError."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, InvalidInput):
        return ConfigError(error.value, rule=error.rule, fix=error.fix)
    if isinstance(error, OmegaConfBaseException):
        return unresolved(error)
    if isinstance(error, OSError) and (refused := refused_path(error)):
        return refused
    if isinstance(error, ImportError):
        rule = "a run imports it; PYTHONPATH and VERL_USE_EXTERNAL_MODULES add to the packages, and may hide some"
        return ConfigError(_name(error), rule=rule, fix="install what is missing, or correct these variables")
    trace = "".join(traceback.format_exception(error)).rstrip()
    rule = "a check that fails to run has checked nothing, so the run does not start"
    fix = "correct the value that the traceback shows, or report it as a bug of verl-mas"
    return ConfigError(f"a check raised {_name(error)}\n{trace}", rule=rule, fix=fix)


def unresolved(error: OmegaConfBaseException) -> ConfigError:
    """Report a value that OmegaConf cannot resolve, such as an interpolation of a missing key."""
    key = error.full_key
    value = (f"{key}: " if key else "") + str(error.msg or error).splitlines()[0]
    rule = "every value of the configuration can be resolved"
    return ConfigError(value, rule=rule, fix=f"set {key}, or correct what it refers to" if key else "correct the value")


def raised_by(
    function: Callable[..., object], *arguments: object, seconds: float | None = None
) -> Iterator[ConfigError]:
    """Call a check that raises an error, such as the check of a workflow or an engine, and yield the error instead."""
    try:
        with user_code(seconds):
            function(*arguments)
    except MasError as error:
        yield as_refusal(error)


@contextmanager
def user_code(seconds: float | None = None) -> Iterator[None]:
    """Convert exceptions of user code to errors with file, line, and the frames of user code in the traceback.

    `SystemExit` becomes an error, too, because it would end `check` and the run as if nothing were wrong. Code that
    takes longer than `seconds` is also an error.
    """
    try:
        with foreign(MasError, KeyboardInterrupt, exits=True), _time_limit(seconds):
            yield
    except (ForeignError, asyncio.CancelledError) as failed:
        # The checks cancel no task, so a cancellation is an error of user code, too.
        error = failed.error if isinstance(failed, ForeignError) else failed
        trace = traceback.TracebackException.from_exception(error)
        user_frames = [frame for frame in trace.stack if not _ours(frame.filename)]
        # Show only frames of user code. If there are none, our own call failed, so show all frames. A SyntaxError is
        # different: its message names file and line, so if it has no frames of user code, show no frames.
        if user_frames or isinstance(error, SyntaxError):
            trace.stack = traceback.StackSummary.from_list(user_frames)
        place = _place(error, trace.stack)
        frames = "".join(line for line in trace.format() if line != HEADER).rstrip()
        rule, fix = "the file of a workflow, its `agents` and its `check` raise no exception before Ray starts", ""
        if isinstance(error, TimeLimit):
            rule = "the file of a workflow and its `check` end within mas.workflow.check_timeout_s"
            fix = f", or set mas.workflow.check_timeout_s={10 * error.seconds:g}"
        raise ConfigError(f"{place}: {_name(error)}\n{frames}", rule=rule, fix=f"correct {place}{fix}") from error


class TimeLimit(BaseException):
    """User code took too long. It is a BaseException, because a loop that waits for a server may catch Exception."""

    def __init__(self, seconds: float):
        super().__init__(f"no end after {seconds:g} s")
        self.seconds = seconds


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raise `TimeLimit` in the main thread. Other threads get no signals, so there is no limit in them."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(number: int, frame: FrameType | None) -> None:
        raise TimeLimit(seconds)

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, expired)
    # Raise `TimeLimit` again every second, because user code may catch every exception.
    outer, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - started), 1e-3), interval)


def _ours(filename: str) -> bool:
    return filename.startswith(PACKAGE) or "importlib" in filename


def _place(error: BaseException, stack: traceback.StackSummary) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}" if error.lineno else str(error.filename)
    return f"{stack[-1].filename}, line {stack[-1].lineno}"


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
