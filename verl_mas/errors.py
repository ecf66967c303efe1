"""The exceptions a user can meet. Each says the value, the rule it broke and the fix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum


class MasError(Exception):
    """Everything verl-mas raises on purpose."""


class InvalidInput(MasError, ValueError):
    """A value that cannot work, refused before it can do harm."""

    def __init__(self, value: str, *, rule: str, fix: str):
        super().__init__(f"{value}\n  rule: {rule}\n  fix:  {fix}")
        self.value, self.rule, self.fix = value, rule, fix

    def __reduce__(self):
        # Exceptions cross process borders in Ray; the default pickling forgets keyword arguments.
        return _rebuild, (type(self), self.value, self.rule, self.fix)


def _rebuild(kind: type[InvalidInput], value: str, rule: str, fix: str) -> InvalidInput:
    return kind(value, rule=rule, fix=fix)


class ConfigError(InvalidInput):
    """A configuration that verl-mas or verl cannot run."""


class ConfigErrors(ConfigError):
    """Several refusals at once, so that a user can fix them in one go."""

    def __init__(self, errors: Sequence[ConfigError]):
        MasError.__init__(self, "\n".join([*map(str, errors), f"{len(errors)} errors"]))
        self.errors = tuple(errors)
        self.value, self.rule, self.fix = ("\n".join(getattr(e, part) for e in errors) for part in _PARTS)

    def __reduce__(self):
        return ConfigErrors, (self.errors,)


_PARTS = ("value", "rule", "fix")


def raise_all(found: Iterable[ConfigError]) -> None:
    """Raises what was found: nothing, one error as it is, or several as one."""
    errors = [part for error in found for part in (error.errors if isinstance(error, ConfigErrors) else [error])]
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)


class DataError(InvalidInput):
    """A dataset row or a batch that breaks its contract."""


class PatchRefused(MasError):
    """verl's source is not the one a patch was written for."""


class RunFailed(MasError):
    """A training run that verl-mas started ended with an error; the message has the end of its log."""


class EngineLost(MasError):
    """An inference engine died or failed; the run ends, and the message names the engine."""


class RequestError(InvalidInput):
    """A generate call that the engine cannot serve; the others go on."""


class WorkflowError(InvalidInput):
    """A workflow that uses its team in a way that cannot work."""


class FaultKind(str, Enum):
    """Why an act or a session failed."""

    TIMEOUT = "timeout"
    REFUSED = "refused"  # the engine or endpoint would not serve the request
    LIMIT = "limit"  # max_acts, the session's time, or a prompt that does not fit: trying again cannot help
    CANCELLED = "cancelled"
    WORKFLOW = "workflow"  # an exception in the workflow's own code

    @property
    def worth_retrying(self) -> bool:
        return self not in (FaultKind.LIMIT, FaultKind.CANCELLED)


class SessionFault(MasError):
    """A failure that is data on its session: its kind, and where it happened."""

    def __init__(self, kind: FaultKind, cause: str, *, agent: str | None = None, turn: int | None = None):
        where = f" (agent {agent}, turn {turn})" if agent is not None else ""
        super().__init__(f"{kind.value}: {cause}{where}")
        self.kind, self.cause, self.agent, self.turn = kind, cause, agent, turn

    def __reduce__(self):
        return _rebuild_fault, (self.kind, self.cause, self.agent, self.turn)


def _rebuild_fault(kind: FaultKind, cause: str, agent: str | None, turn: int | None) -> SessionFault:
    return SessionFault(kind, cause, agent=agent, turn=turn)


@contextmanager
def failures(*, agent: str | None = None, turn: int | None = None) -> Iterator[None]:
    """The one boundary: whatever goes wrong inside comes out as SessionFault, with its place.

    Cancelling passes through, and so does the loss of an engine, which is no session's own affair.
    """
    try:
        yield
    except EngineLost:
        raise
    except SessionFault as error:
        if error.agent is not None or agent is None:
            raise
        raise SessionFault(error.kind, error.cause, agent=agent, turn=turn) from error
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise SessionFault(FaultKind.TIMEOUT, _said(error), agent=agent, turn=turn) from error
    except Exception as error:
        # What a client raises means a refused act; what is raised between acts is the workflow's own doing.
        kind = FaultKind.WORKFLOW if agent is None else FaultKind.REFUSED
        raise SessionFault(kind, _said(error), agent=agent, turn=turn) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
