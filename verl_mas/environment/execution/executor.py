"""The interface of executors, which run programs that a model wrote, and the settings that name an executor."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, TypeVar, runtime_checkable

from verl_mas.config.registry import Registry
from verl_mas.config.values import Above, Count, Range, check_fields
from verl_mas.environment.execution.limits import Answer, Call, Limits, Result
from verl_mas.errors import ConfigError

SETTING = "mas.workflow.args.execution"
# Executors that run programs on this machine.
LOCAL = ("contained", "unsafe_subprocess")


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
    try:
        factory: MakeExecutor = getattr(importlib.import_module(module), attribute)
        if not callable(factory):
            raise TypeError(f"{attribute} is not callable")
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        rule = 'it is a registered name, or "package.module:function", which makes an Executor from its settings'
        fix = "give a function or class that takes a verl_mas.environment.execution.executor.Execution"
        raise ConfigError(f"{SETTING}.executor={name}: {error}", rule=rule, fix=fix) from error
    return factory
