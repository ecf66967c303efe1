"""The default executor: programs in processes that can open nothing, one fork server per event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence

from verl_mas.errors import ExecutorFailed
from verl_mas.execution.contained import harness
from verl_mas.execution.contained.probes import got_through, not_contained
from verl_mas.execution.contained.protocol import BY_LIMIT, NO_MEMORY, NOT_COMPILED, NOT_STARTED, Job, ProgramEnd
from verl_mas.execution.contained.server_process import ServerLost, ServerProcess, check_machine, package_folders
from verl_mas.execution.executor import Execution, register_executor
from verl_mas.execution.limits import DEFAULT, Answer, Call, Limits, Result, Status
from verl_mas.util.loops import waited_for

_MB = 2**20
# Of a start, and of a program: the fork server may be killed by others, for example if the machine has no memory left.
_TRIES = 3
# A fork server that does not end a program this long after its limit is taken for dead.
_SILENCE_S = 20.0
_CLOSED = "the sandbox was closed"


@register_executor("contained")
class Contained:
    """Runs programs without files, network, processes, environment, or memory of other programs."""

    def __init__(self, settings: Execution):
        self._slots = settings.slots
        self._packages = settings.packages
        self._servers: list[_Attached] = []
        self._lock = threading.Lock()

    def check(self) -> None:
        """Start it once, and try what programs may not do."""
        try:
            waited_for(self._check())
        finally:
            with self._lock:
                for server in self._servers:
                    if server.process.free:
                        server.process.close()

    async def _check(self) -> None:
        result = await self.execute("print(1)")
        if result.stdout != "1\n":
            raise ExecutorFailed(f"the sandbox does not run print(1): {result}")
        if escapes := await got_through(self):
            raise not_contained(escapes)

    async def layers(self) -> dict[str, str]:
        """What contains programs on this machine: `YES`, or why it is not active."""
        return (await self._server()).process.layers

    def pids(self) -> list[int]:
        """The fork servers' processes."""
        return [server.process.pid for server in self._servers if server.usable]

    async def execute(self, program: str, stdin: str = "", limits: Limits = DEFAULT) -> Result:
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

    async def call(self, program: str, calls: Sequence[Call], limits: Limits = DEFAULT) -> list[Answer]:
        text = harness.dump_calls([(call.function, call.args, call.kwargs) for call in calls])
        size = max(limits.output_bytes, harness.MAX_BYTES)
        ended, (_, _, answers) = await self._run(text.encode() + b"\n" + _encoded(program), b"", limits, size, 3)
        status = _status(ended, flooded=False)
        missing = "no answer" if status is Status.OK else status.value
        return [Answer(*pair) for pair in harness.read_answers(answers.decode("utf-8", "replace"), len(calls), missing)]

    async def aclose(self) -> None:
        """End all fork servers and their programs."""
        with self._lock:
            servers, self._servers = self._servers, []
        for server in servers:
            server.closed = True
            server.process.close(_CLOSED, ExecutorFailed)

    async def _run(
        self, program: bytes, stdin: bytes, limits: Limits, file_size: int, outputs: int
    ) -> tuple[ProgramEnd, list[bytes]]:
        """How the program ended, and what it wrote to each output. Lost with the sandbox, it is run again."""
        # One byte more, to tell a program at its limit from one beyond it.
        job = Job(0, limits.cpu_s, limits.seconds, limits.memory_mb * _MB, file_size + 1, limits.threads)
        reasons: list[str] = []
        while len(reasons) < _TRIES:
            try:
                server = await self._free_server()
                ended, written = await server.run(job, program, stdin, outputs)
            except ServerLost as error:
                reasons.append(f"it died{error}")
                continue
            except OSError as error:  # such as too many open files
                raise ExecutorFailed(f"the sandbox: {error}") from error
            reason = _fault(ended, limits)
            if not reason:
                return ended, written
            reasons.append(reason)
        raise ExecutorFailed(f"the sandbox failed {_TRIES} times: {'; '.join(reasons)}")

    async def _free_server(self) -> _Attached:
        """The fork server of this event loop, with one of its slots taken."""
        while True:
            server = await self._server()
            await server.slots.acquire()
            if not server.process.lost:
                return server
            server.slots.release()
            if server.closed:
                raise ExecutorFailed(_CLOSED)

    async def _server(self) -> _Attached:
        loop, reason = asyncio.get_running_loop(), ""
        for _ in range(_TRIES):
            with self._lock:
                server = self._find(loop)
            try:
                await server.process.started()
            except ServerLost as error:
                reason = str(error)
                continue
            return server
        raise ExecutorFailed(f"the sandbox did not start: it died{reason}")

    def _find(self, loop: asyncio.AbstractEventLoop) -> _Attached:
        self._servers = [server for server in self._servers if server.usable]
        for server in self._servers:
            if server.process.loop is loop:
                return server
        # One of a loop that was closed is used again; more are of no use.
        free = [server for server in self._servers if server.process.free]
        for server in free[1:]:
            server.process.close()
        if free:
            process = free[0].process
        else:
            check_machine()
            process = ServerProcess(package_folders(self._packages))
        process.attach(loop)
        attached = _Attached(process, self._slots)
        self._servers = [*(server for server in self._servers if server not in free), attached]
        return attached


class _Attached:
    """A fork server in an event loop, and the programs that may run at once."""

    def __init__(self, process: ServerProcess, slots: int):
        self.process = process
        self.slots = asyncio.Semaphore(slots)
        self.closed = False
        self._owner = os.getpid()

    @property
    def usable(self) -> bool:
        return not self.process.lost and self._owner == os.getpid()

    async def run(self, job: Job, program: bytes, stdin: bytes, outputs: int) -> tuple[ProgramEnd, list[bytes]]:
        """Run a program in a slot that was taken for it: how it ended, and what it wrote to each output."""
        future: asyncio.Future[ProgramEnd] | None = None
        try:
            with _files(program, stdin, outputs) as descriptors:
                future = self.process.submit(job, descriptors)
                ended = await self._end_of(future, job)
                written = (descriptors[1], descriptors[2], *descriptors[4:])
                return ended, [os.pread(descriptor, job.file_size, 0) for descriptor in written]
        finally:
            # A cancelled call leaves its slot when its process has ended.
            if future is None:
                self.slots.release()
            else:
                future.add_done_callback(lambda _: self.slots.release())

    async def _end_of(self, future: asyncio.Future[ProgramEnd], job: Job) -> ProgramEnd:
        try:
            await asyncio.wait([future], timeout=job.wall_s + _SILENCE_S)
        except asyncio.CancelledError:
            self.process.kill(future)
            asyncio.get_running_loop().call_later(_SILENCE_S, self._close_if_silent, future)
            raise
        self._close_if_silent(future)
        return future.result()

    def _close_if_silent(self, future: asyncio.Future[ProgramEnd]) -> None:
        if not future.done():
            self.process.close(": it does not answer")


@contextlib.contextmanager
def _files(program: bytes, stdin: bytes, outputs: int) -> Iterator[list[int]]:
    """Files in memory: input, output, errors, the program, and for calls the answers."""
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


def _fault(ended: ProgramEnd, limits: Limits) -> str:
    """Why this end is not the program's; empty if it is."""
    if ended.reason == NOT_STARTED:
        return f"no process could be started: {os.strerror(ended.status)}"
    if ended.reason == BY_LIMIT or not os.WIFSIGNALED(ended.status):
        return ""
    number = os.WTERMSIG(ended.status)
    if number == signal.SIGUSR2:
        return "a process could not be sealed"
    if number == signal.SIGKILL and ended.cpu_seconds < limits.cpu_s:
        return "a process was killed from outside, as if this machine had no memory left; set fewer slots"
    return ""


def _status(ended: ProgramEnd, flooded: bool) -> Status:
    number = os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else 0
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return Status.TIMED_OUT
    if flooded or number == signal.SIGXFSZ:
        return Status.TOO_MUCH_OUTPUT
    if number:
        return Status.KILLED
    return _EXIT_CODES.get(os.WEXITSTATUS(ended.status), Status.ERROR)


_EXIT_CODES = {0: Status.OK, NOT_COMPILED: Status.SYNTAX_ERROR, NO_MEMORY: Status.OUT_OF_MEMORY}
