"""Every exception that a user can meet, and how failures are classified. There are four mechanisms:

Vocabulary. Every exception that verl-mas raises on purpose is a `MasError`. A rejected value is an `InvalidInput`, with
the value, the rule that it breaks and the fix. A failed act or workflow is a `SessionFault`, with its kind, cause,
agent and turn.

Classification. A `SessionFault` is recorded on its session, and `mas.faults` decides whether it is retried or dropped.
The run ends on `EngineLost`, on `SessionsFailed` (more sessions failed than `mas.faults.max_dropped_share` allows), and
on an exception in an update (`UpdateFailed` if its gradient is not finite, or if its weights do not reach the engines).
Cancellation passes through as it is.

Surfacing. `verl_mas.checks` collects all errors that are known before Ray starts, and ends the driver with one message.
Session faults are counted in `session/faults/<kind>`, written with cause and traceback in the session records, and
logged: the first fault of each kind in full, each further fault in one line. Any other exception ends the run with its
traceback; a command prints the message of the exception and exits with 1.

Capture. Code that is not verl-mas's own may raise any exception. It runs within `foreign()`, which raises a
`ForeignError` in place of that exception and lets cancellation and Ctrl-C pass. `failures()` is the boundary around
user workflows and clients: it converts their exceptions to a `SessionFault`. An exception of a tool becomes the result
of its call, unless it is a SessionFault or EngineLost. Other code catches only exceptions that it expects; a broad
`except` is the boundary of a process or thread, and a comment gives the reason.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import TracebackType

from verl_mas.util.text import bare_address, encodable


class MasError(Exception):
    """Base of everything that verl-mas raises on purpose. Messages omit the user, password and query of every URL."""

    def __init__(self, *texts: str):
        super().__init__(*map(bare_address, texts))


class InvalidInput(MasError, ValueError):
    """A value that cannot work, refused before it is used."""

    def __init__(self, value: str, *, rule: str, fix: str):
        super().__init__(f"{value}\n  rule: {rule}\n  fix:  {fix}")
        self.value, self.rule, self.fix = map(bare_address, (value, rule, fix))

    def __reduce__(self) -> tuple[object, ...]:
        # Ray pickles exceptions to pass them between processes, and the default pickling drops keyword arguments.
        return partial(type(self), self.value, rule=self.rule, fix=self.fix), ()


class ConfigError(InvalidInput):
    """A configuration that verl-mas or verl cannot run."""


@dataclass(frozen=True)
class ConfigWarning:
    """A configuration that runs, but most likely not as its user intends."""

    value: str
    reason: str
    fix: str

    def __post_init__(self) -> None:
        vars(self).update({name: bare_address(text) for name, text in vars(self).items()})

    def __str__(self) -> str:
        return f"{self.value}\n  reason: {self.reason}\n  fix:    {self.fix}"


class ConfigErrors(ConfigError):
    """Several refusals at once, so that a user can fix them together."""

    def __init__(self, errors: Sequence[ConfigError]):
        MasError.__init__(self, "\n".join([*map(str, errors), f"{len(errors)} errors"]))
        self.errors = tuple(errors)
        parts = ("value", "rule", "fix")
        self.value, self.rule, self.fix = ("\n".join(getattr(e, part) for e in errors) for part in parts)

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigErrors, (self.errors,)


def refused_path(error: OSError) -> ConfigError | None:
    """Describe a path that the system refuses; None for an error that is not about a path."""
    if not isinstance(error.filename, str):
        return None
    rule = "a path is short enough, of the right kind, and this user may read it, or write where something is written"
    fix = "correct the path or its rights; `ls -ld` of it and of the folders above shows them"
    return ConfigError(f"{error.filename}: {error.strerror}", rule=rule, fix=fix)


def raise_all(problems: Iterable[ConfigError]) -> None:
    """Raise a single error unchanged, or several as one `ConfigErrors`. Do nothing if there are none."""
    errors = [part for error in problems for part in (error.errors if isinstance(error, ConfigErrors) else [error])]
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)


class DataError(InvalidInput):
    """A dataset row or a batch that breaks its contract."""


class DiskError(InvalidInput):
    """A checkpoint or a session record that cannot be written or read."""


class RunFailed(MasError):
    """A training run that verl-mas started ended with an error; the message has the end of its log."""


class EngineLost(MasError):
    """An inference engine or a reward worker died or failed; the run ends, and the message names it."""


class ProgramLost(EngineLost):
    """The program of a team cannot be imported, in this session or any other; the run ends with the traceback."""


class SessionsFailed(MasError):
    """Too many sessions of a step or a validation failed, so the run ends. The message has counts and first causes."""


class ExecutorFailed(MasError):
    """A program could not be run, because the sandbox or service itself failed. The program may be correct or not."""


class UpdateFailed(MasError):
    """An update without a finite loss and gradient, or one whose weights do not reach the engines; the run ends."""


class RequestError(InvalidInput):
    """A generate call that the engine cannot serve; other calls are not affected."""


class WorkflowError(InvalidInput):
    """A workflow that uses its team in a way that cannot work."""


class FaultKind(str, Enum):
    """Why an act or a session failed."""

    TIMEOUT = "timeout"
    REFUSED = "refused"  # the engine or endpoint did not serve the request
    SESSION_TIMEOUT = "session_timeout"  # the session took longer than mas.faults.session_timeout_s
    LIMIT = "limit"  # max_acts, or a prompt that does not fit: a retry cannot help
    CANCELLED = "cancelled"
    WORLD = "world"  # the object that `mas.workflow.args.world` names raised an error, took too long, or ended
    WORKFLOW = "workflow"  # an exception in the workflow's own code

    @property
    def worth_retrying(self) -> bool:
        return self not in (FaultKind.SESSION_TIMEOUT, FaultKind.LIMIT, FaultKind.CANCELLED)

    @property
    def timed_out(self) -> bool:
        return self in (FaultKind.TIMEOUT, FaultKind.SESSION_TIMEOUT)


class SessionFault(MasError):
    """A failure that is recorded on its session: its kind, its cause, and where it happened.

    `traceback` is the traceback as text. The session sets it when the attempt has ended.
    """

    def __init__(
        self, kind: FaultKind, cause: str, *, agent: str | None = None, turn: int | None = None, traceback: str = ""
    ):
        self.kind, self.agent, self.turn = kind, agent, turn
        self.cause, self.traceback = bare_address(encodable(cause)), traceback
        self._where = f" (agent {agent}, turn {turn})" if agent is not None else ""
        super().__init__(f"{kind.value}: {self.cause}{self._where}")

    @property
    def line(self) -> str:
        """The fault without the further lines of its cause."""
        first, _, _ = self.cause.partition("\n")
        return f"{self.kind.value}: {first}{self._where}"

    def __reduce__(self) -> tuple[object, ...]:
        place = partial(type(self), agent=self.agent, turn=self.turn, traceback=self.traceback)
        return place, (self.kind, self.cause)


class PromptTooLong(SessionFault):
    """A conversation that does not fit in a prompt of its policy."""


class ForeignError(MasError):
    """An exception of code that is not verl-mas's own. `error` is that exception."""

    def __init__(self, error: BaseException):
        super().__init__(_described(error))
        self.error = error


class foreign:
    """The boundary around foreign code: raises a ForeignError in place of an exception of that code.

    Cancellation, Ctrl-C and exceptions of the types `passing` are raised unchanged. With `exits`, every other exception
    becomes a ForeignError: a session or a file of the user must not end its process with SystemExit or a panic of Rust.
    Without `exits`, such exceptions, whose types do not derive from `Exception`, are raised unchanged.
    """

    def __init__(self, *passing: type[BaseException], exits: bool = False):
        self._caught = BaseException if exits else Exception
        self._passing = (*passing, asyncio.CancelledError)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        passes = isinstance(error, self._passing) or is_interrupt(error)
        if isinstance(error, self._caught) and not passes:
            raise ForeignError(error) from error


@contextmanager
def failures(*, agent: str | None = None, turn: int | None = None) -> Iterator[None]:
    """The boundary around user code and clients: an exception inside becomes a SessionFault with its agent and turn.

    Cancellation and EngineLost pass through, because neither is the session's fault. Ctrl-C reaches only the main
    thread.
    """
    try:
        with foreign(EngineLost, SessionFault, exits=True):
            yield
    except SessionFault as error:
        if error.agent is not None or agent is None:
            raise
        raise type(error)(error.kind, error.cause, agent=agent, turn=turn) from error
    except ForeignError as failed:
        # Inside an act the client raised the error, so the act was refused. Between acts, it is an error of the
        # workflow.
        kind = FaultKind.WORKFLOW if agent is None else FaultKind.REFUSED
        if isinstance(failed.error, TimeoutError | asyncio.TimeoutError):
            kind = FaultKind.TIMEOUT
        raise SessionFault(kind, _described(failed.error), agent=agent, turn=turn) from failed.error


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is the user's Ctrl-C, and not a KeyboardInterrupt that code of a session raised. Python raises
    Ctrl-C only in the main thread."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
