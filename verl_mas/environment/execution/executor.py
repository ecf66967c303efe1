"""Executors, which run programs that a model wrote: their interface, the limits and results of programs, and the
settings that name an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, ClassVar, Protocol, TypeVar, runtime_checkable

from verl_mas.config.registry import Registry
from verl_mas.config.user_code import load_module
from verl_mas.config.values import Above, Count, Positive, Range, check_fields
from verl_mas.errors import ConfigError

SETTING = "mas.workflow.args.execution"
# Executors that run programs on this machine.
LOCAL = ("contained", "unsafe_subprocess")
# A value that a call takes or returns: None, bool, int, float, complex, str, bytes, and lists, tuples, sets and dicts
# of these.
Plain = object


@dataclass(frozen=True)
class Limits:
    """Limits of one program. If `wall_s` is None, the wall time may be three times `cpu_s` plus two seconds."""

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


@runtime_checkable
class Executor(Protocol):
    """Runs programs that a model wrote, and contains them.

    If the executor itself fails, it raises an error and gives no verdict.
    Many sessions use an executor at the same time, and event loops may start and end during its lifetime.
    """

    def check(self) -> None:
        """Raise an error before a run starts if programs cannot be run, for example because a service is down."""

    async def execute(self, program: str, stdin: str = "", limits: Limits = ...) -> Result:
        """Run a program. If this call is cancelled, the program is ended."""

    async def call(self, program: str, calls: Sequence[Call], limits: Limits = ...) -> list[Answer]:
        """Run a program, then the calls in the same process. Returns one answer per call."""

    async def aclose(self) -> None:
        """End all processes and connections that the executor started."""


@dataclass(frozen=True)
class Execution:
    """How a team's programs are run: the executor by name, its settings, and the limits of every program."""

    safe_arguments: ClassVar[Mapping[str, str]] = {"executor": "contained"}

    executor: str = "contained"
    """A registered executor, or a "package.module:function" that makes an executor from these settings."""

    packages: Sequence[str] = ()
    """Packages that programs may import in addition to the standard library, such as numpy and sympy."""

    cpu_s: Annotated[float, Above(0), Range(high=3600)] = 2.0
    """The limit of a program's CPU time, in seconds."""

    memory_mb: Annotated[int, Range(16, 2**20)] = 256
    """The limit of a program's memory, in MB."""

    output_bytes: Annotated[int, Range(64, 2**30)] = 65_536
    """Maximum number of bytes that a program may print to each of stdout and stderr."""

    slots: Count = 2
    """Maximum number of programs that run at the same time in a worker process."""

    url: str | None = None
    """The address of the service, for executors that send programs to a service."""

    def __post_init__(self) -> None:
        check_fields(self, SETTING)
        if self.url is not None and self.executor in LOCAL:
            value = f"{SETTING}.url={self.url} with {SETTING}.executor={self.executor}"
            fix = f"leave url out, or set ++{SETTING}.executor=sandbox_fusion"
            raise ConfigError(value, rule=f"{self.executor} runs programs on this machine", fix=fix)

    @property
    def limits(self) -> Limits:
        return Limits(cpu_s=self.cpu_s, memory_mb=self.memory_mb, output_bytes=self.output_bytes)

    def open(self) -> Executor:
        """Return the executor of these settings. In a process, equal settings share an executor."""
        key = (self.executor, tuple(self.packages), self.slots, self.url)
        if key not in _OPEN:
            executor = _factory(self.executor)(self)
            if not isinstance(executor, Executor):
                value = f"{SETTING}.executor={self.executor}: it made {executor!r:.80}"
                rule = "an Executor has the methods check, execute, call and aclose"
                fix = "return an object that has them; docs/write/execution.md has an example"
                raise ConfigError(value, rule=rule, fix=fix)
            _OPEN[key] = executor
        return _OPEN[key]

    def check(self) -> None:
        """Raise an error before a run starts if programs cannot be run."""
        self.open().check()


MakeExecutor = Callable[[Execution], Executor]
EXECUTORS = Registry[MakeExecutor](
    "executor", package="verl_mas.environment.execution.executors", group="verl_mas.executors"
)
_OPEN: dict[object, Executor] = {}

M = TypeVar("M", bound=MakeExecutor)


def register_executor(name: str) -> Callable[[M], M]:
    """Register a class or function that makes an Executor from its settings."""
    return EXECUTORS.register(name)  # type: ignore[return-value]


def _factory(name: str) -> MakeExecutor:
    if ":" not in name:
        return EXECUTORS.find(name, f"{SETTING}.executor")
    module, _, attribute = name.partition(":")
    factory: MakeExecutor | None = getattr(load_module(module, f"{SETTING}.executor"), attribute, None)
    if not callable(factory):
        rule = 'it is a registered name, or "package.module:function", which makes an Executor from its settings'
        fix = f"define {attribute} there: a function or class that takes a {__name__}.Execution"
        raise ConfigError(f"{SETTING}.executor={name}", rule=rule, fix=fix)
    return factory
