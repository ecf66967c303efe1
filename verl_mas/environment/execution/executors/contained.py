"""The default executor. It runs each program in a sandboxed process, which is forked from one fork server."""

import asyncio
import contextlib
import importlib.util
import os
import platform
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from verl_mas.environment.execution.contained import harness
from verl_mas.environment.execution.contained.probes import got_through, not_contained
from verl_mas.environment.execution.contained.sealed import NO_MEMORY, NOT_COMPILED, Job
from verl_mas.environment.execution.executor import (
    SETTING,
    Answer,
    Call,
    Execution,
    Limits,
    Result,
    Status,
    register_executor,
)
from verl_mas.errors import ConfigError, ExecutorFailed
from verl_mas.util.fork_server import BY_LIMIT, NOT_STARTED, Ended
from verl_mas.util.forks import Fork, ForkServer, Refused, Restarted, ServerLost
from verl_mas.util.loops import PerLoop, waited_for

_MB = 2**20
# Maximum number of attempts to run a program. An attempt includes the start of a fork server if none runs. It fails if
# the fork server is killed from outside, for example by the kernel when the machine runs out of memory.
_TRIES = 3
_START_S = 60.0
# A fork server that has not ended a program this many seconds after the program's time limit is considered dead.
_SILENCE_S = 20.0
_CLOSED = "the sandbox was closed"
# The server gets these variables, and from the caller's environment only the variables in `_PASSED_ON`. A fixed hash
# seed gives sets the same order in each run.
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "1",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
# Variables that Python itself may need to start.
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONHOME")
# The packages that a listed package imports. Programs may import these packages, too.
_WITH = {"sympy": ("mpmath",)}


@register_executor("contained")
class Contained:
    """Runs programs without access to files, the network, other processes, the environment, or the memory of
    other programs."""

    def __init__(self, settings: Execution):
        self._settings = settings
        self._slots = PerLoop(lambda: asyncio.Semaphore(settings.slots))
        self._servers = Restarted(partial(_start, settings.packages))

    def check(self) -> None:
        """Start a sandbox, and test that it refuses every forbidden action."""
        waited_for(_checked(Contained(self._settings)))

    async def layers(self) -> dict[str, str]:
        """Return the isolation layers on this machine, each with `YES`, or with the reason why it is not active."""
        server = await self._started(self._servers)
        return server.greeting.result()

    def pids(self) -> list[int]:
        """Return the process id of the fork server in a list; the list is empty without a usable fork server."""
        server = self._servers.server
        return [server.pid] if server is not None and server.usable else []

    async def execute(self, program: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        files = _encoded(program), stdin.encode("utf-8", "replace")
        ended, (stdout, stderr) = await self._run(*files, limits, limits.output_bytes, 2)
        code = os.waitstatus_to_exitcode(ended.status)
        return Result(
            _status(ended, max(len(stdout), len(stderr)) > limits.output_bytes),
            _text(stdout, limits),
            _text(stderr, limits),
            ended.seconds,
            ended.cpu_seconds,
            ended.memory / _MB,
            code if code >= 0 else None,
        )

    async def call(self, program: str, calls: Sequence[Call], limits: Limits = Limits()) -> list[Answer]:
        text = harness.dump_calls([(call.function, call.args, call.kwargs) for call in calls])
        size = max(limits.output_bytes, harness.MAX_BYTES)
        ended, (_, _, answers) = await self._run(text.encode() + b"\n" + _encoded(program), b"", limits, size, 3)
        status = _status(ended, flooded=False)
        missing = "no answer" if status is Status.OK else status.value
        return [Answer(*pair) for pair in harness.read_answers(answers.decode("utf-8", "replace"), len(calls), missing)]

    async def aclose(self) -> None:
        """End the fork server and its programs."""
        servers, self._servers = self._servers, Restarted(partial(_start, self._settings.packages))
        servers.close()

    async def _run(
        self, program: bytes, stdin: bytes, limits: Limits, file_size: int, outputs: int
    ) -> tuple[Ended, list[bytes]]:
        """Run a program; return how it ended and what it wrote to each output. If the sandbox is lost, the program is
        run again."""
        # Allow one byte more, to distinguish output of exactly the limit from output beyond the limit.
        job = Job(limits.cpu_s, limits.memory_mb * _MB, file_size + 1, limits.threads)
        servers, reasons = self._servers, list[str]()
        while len(reasons) < _TRIES:
            try:
                ended, written = await self._run_once(servers, job, (program, stdin), outputs, limits.seconds)
            except ServerLost as error:
                reasons.append(f"it died: {error}")
                continue
            except OSError as error:  # such as too many open files
                raise ExecutorFailed(f"the sandbox: {error}") from error
            reason = _fault(ended, limits)
            if not reason:
                return ended, written
            reasons.append(reason)
        raise ExecutorFailed(f"the sandbox failed {_TRIES} times: {'; '.join(reasons)}")

    async def _started(self, servers: Restarted) -> ForkServer:
        if servers.closed:
            raise ExecutorFailed(_CLOSED)
        server = servers.usable()
        try:
            await asyncio.wait_for(asyncio.wrap_future(server.greeting), _START_S)
        except Refused as error:
            what, reason = error.args
            raise _refused(what, reason, self._settings.packages) from None
        except asyncio.TimeoutError:
            server.close()
            raise ServerLost(f"it did not start within {_START_S:.0f} s") from None
        return server

    async def _run_once(
        self, servers: Restarted, job: Job, files: tuple[bytes, bytes], outputs: int, wall_s: float
    ) -> tuple[Ended, list[bytes]]:
        slots = self._slots.here()
        await slots.acquire()
        ended: asyncio.Future[Ended] | None = None
        try:
            server = await self._started(servers)
            with _files(*files, outputs) as descriptors:
                fork = server.fork(descriptors, job, cpu_s=job.cpu_s, wall_s=wall_s)
                ended = asyncio.wrap_future(fork.ended)
                await _end_of(server, fork, ended, wall_s)
                written = (descriptors[1], descriptors[2], *descriptors[4:])
                return ended.result(), [os.pread(descriptor, job.file_size, 0) for descriptor in written]
        except ServerLost as error:
            raise ExecutorFailed(_CLOSED) if servers.closed else error from None
        finally:
            # A cancelled call frees its slot only when its process has ended.
            if ended is None:
                slots.release()
            else:
                ended.add_done_callback(partial(_leave, slots))


async def _checked(executor: Contained) -> None:
    async with contextlib.aclosing(executor):
        result = await executor.execute("print(1)")
        if result.stdout != "1\n":
            raise ExecutorFailed(f"the sandbox does not run print(1): {result}")
        if escapes := await got_through(executor):
            raise not_contained(escapes)


def _leave(slots: asyncio.Semaphore, ended: asyncio.Future[Ended]) -> None:
    ended.exception()  # mark the exception as retrieved, because the waiting call may have been cancelled
    slots.release()


async def _end_of(server: ForkServer, fork: Fork, ended: asyncio.Future[Ended], wall_s: float) -> None:
    def close_if_silent() -> None:
        if not ended.done():
            server.close()

    try:
        await asyncio.wait([ended], timeout=wall_s + _SILENCE_S)
    except asyncio.CancelledError:
        fork.signal()
        asyncio.get_running_loop().call_later(_SILENCE_S, close_if_silent)
        raise
    close_if_silent()
    await asyncio.wait([ended])


@contextlib.contextmanager
def _files(program: bytes, stdin: bytes, outputs: int) -> Iterator[list[int]]:
    """Make files in memory: input, output, errors, the program and, for calls, the answers."""
    descriptors: list[int] = []
    try:
        for content in (stdin, b"", b"", program, *[b""] * (outputs - 2)):
            descriptors.append(os.memfd_create("program", os.MFD_CLOEXEC))
            if content:
                os.pwrite(descriptors[-1], content, 0)
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _encoded(program: str) -> bytes:
    return program.encode("utf-8", "surrogatepass")


def _text(written: bytes, limits: Limits) -> str:
    return written[: limits.output_bytes].decode("utf-8", "replace")


def _fault(ended: Ended, limits: Limits) -> str:
    """Return the fault of the sandbox or the machine that ended the process; empty if the program caused its end."""
    if ended.reason == NOT_STARTED:
        return f"no process could be started: {os.strerror(ended.status)}"
    if ended.reason == BY_LIMIT or not os.WIFSIGNALED(ended.status):
        return ""
    number = os.WTERMSIG(ended.status)
    if number == signal.SIGUSR2:
        return "a process could not be sealed"
    if number == signal.SIGKILL and ended.cpu_seconds < limits.cpu_s:
        return "a process was killed from outside, perhaps because this machine ran out of memory; set fewer slots"
    return ""


def _status(ended: Ended, flooded: bool) -> Status:
    number = os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else 0
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return Status.TIMED_OUT
    if flooded or number == signal.SIGXFSZ:
        return Status.TOO_MUCH_OUTPUT
    if number:
        return Status.KILLED
    return _EXIT_CODES.get(os.WEXITSTATUS(ended.status), Status.ERROR)


_EXIT_CODES = {0: Status.OK, NOT_COMPILED: Status.SYNTAX_ERROR, NO_MEMORY: Status.OUT_OF_MEMORY}


def _start(packages: Iterable[str]) -> ForkServer:
    """Start a fork server for programs that may import these packages."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        raise _refused("seccomp", f"{platform.system()} on {platform.machine()}", ())
    env = _ENVIRONMENT | {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    kind, python = "verl_mas.environment.execution.contained.sealed:Sealed", (sys.executable, "-s", "-S")
    return ForkServer(kind, _package_folders(packages), python=python, env=env, cwd="/")


def _refused(what: str, reason: str, packages: Iterable[str]) -> ConfigError:
    """Make the error for a machine without the filter of system calls, or for an unusable package."""
    if what == "packages":
        value = f"{SETTING}.packages=[{','.join(packages)}]: {reason}"
        rule = "every package can be imported in a process of one thread, without the other installed packages"
        return ConfigError(value, rule=rule, fix="leave it out, or list the packages that it imports as well")
    rule = "programs are contained by a filter of system calls: Linux on x86-64, and a kernel that allows seccomp"
    fix = (
        f"run on such a machine, or send programs to a service: {SETTING}.executor=sandbox_fusion "
        f"{SETTING}.url=http://...; {SETTING}.executor=unsafe_subprocess runs them with the rights of this user"
    )
    return ConfigError(f"{SETTING}.executor=contained: {reason}", rule=rule, fix=fix)


def _package_folders(packages: Iterable[str]) -> dict[str, str]:
    """Map each package, and the packages in `_WITH` that it imports, to its folder."""
    names = dict.fromkeys(name for package in packages for name in (*_WITH.get(package, ()), package))
    return {name: _folder(name) for name in names}


def _folder(name: str) -> str:
    value = f"{SETTING}.packages: {name!r}"
    if name in sys.stdlib_module_names:
        raise ConfigError(value, rule="programs can always import the standard library", fix="leave it out")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None:
        rule = "it is the name of an installed package, as programs import it"
        raise ConfigError(value, rule=rule, fix=f"pip install {name}, or leave it out")
    if not spec.submodule_search_locations:
        raise ConfigError(f"{value}, which is one file", rule="a package is a folder of modules", fix="leave it out")
    return os.path.abspath(next(iter(spec.submodule_search_locations)))
