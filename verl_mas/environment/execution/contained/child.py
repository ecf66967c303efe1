"""The process of one program: it seals itself, then runs the program."""

from __future__ import annotations

import builtins
import errno
import gc
import io
import linecache
import math
import os
import random
import resource
import signal
import site
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from verl_mas.environment.execution.contained import isolation
from verl_mas.environment.execution.contained.harness import run_calls
from verl_mas.environment.execution.contained.seccomp import Filter
from verl_mas.util import as_main
from verl_mas.util.fork_server import die_with_parent

# Descriptors of a program: its input, its output, its errors, the program itself, and, if functions are called, a fifth
# descriptor for the answers. All are files in memory.
STDIN, STDOUT, STDERR, PROGRAM, ANSWERS = range(5)
YES = "yes"  # reported for an active isolation layer; for an inactive layer, the reason is reported
# Exit codes of this process if the program does not compile, and if it ends with a MemoryError. A program that itself
# exits with such a code is reported in the same way.
NOT_COMPILED, NO_MEMORY = 251, 250
# User ids without files or processes: systemd's range for services with dynamic users.
FIRST_USER, USERS = 61_184, 4_335
NAME = "program.py"
MAX_FILES = 32
# Limit of the main thread's stack, large enough for deep recursion. The program's memory limit also bounds the stack.
_STACK = 64 * 2**20
# Tasks that RLIMIT_NPROC allows in addition to the counted tasks of this user: threads of all programs, and other
# tasks that the user starts before the next count.
_MORE_TASKS = 512
_LONG_LINE = 1000
_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_open = io.open


class Job(NamedTuple):
    """The limits that a program's process sets in the kernel. The fork server, too, enforces `cpu_s`."""

    cpu_s: float
    memory: int
    file_size: int
    threads: int


class Seal(NamedTuple):
    """The isolation that the machine allows. The fork server has tested it."""

    filter: Filter
    server: int  # process id of the fork server
    address_space: int  # bytes of the fork server's address space, with Python and the library
    users: int | None = None  # offset of the programs' own user ids, one id per slot; None: they have no own ids
    user_namespace: bool = False  # whether each program has its own user namespace, which counts its threads from 0
    counted: bool = False  # whether the kernel counts a program's threads together with all tasks of this user
    user: int | None = None
    tasks: int = 0

    def of_slot(self, slot: int) -> Seal:
        return self if self.users is None else self._replace(user=FIRST_USER + (self.users + slot) % USERS)

    def apply(self, job: Job, descriptors: Sequence[int]) -> None:
        """Close all file descriptors except `descriptors`, and enter isolation. `descriptors` are renumbered from 0, so
        each of their current numbers must be higher than all new numbers."""
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(len(descriptors), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        cpu_s = math.ceil(job.cpu_s) + 1
        for limit, value in (
            (resource.RLIMIT_AS, self.address_space + job.memory),
            (resource.RLIMIT_FSIZE, job.file_size),
            (resource.RLIMIT_NOFILE, MAX_FILES),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_STACK, _STACK),
        ):
            _limit(limit, value, value)
        _limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
        self._leave_user(job.threads)
        isolation.leave_no_core_dump()
        die_with_parent(self.server)  # set again, because a change of the user resets it
        self.filter.install()

    def _leave_user(self, threads: int) -> None:
        if self.user is not None:
            isolation.set_user(self.user)
        elif self.user_namespace:
            isolation.leave_users()
            isolation.drop_capabilities()  # a process has all capabilities in its own namespace
        if self.counted:
            threads = self.tasks + _MORE_TASKS
        _limit(resource.RLIMIT_NPROC, threads, threads)


def _limit(limit: int, soft: int, hard: int) -> None:
    bound = resource.getrlimit(limit)[1]
    if bound != resource.RLIM_INFINITY:
        soft, hard = min(soft, bound), min(hard, bound)
    resource.setrlimit(limit, (soft, hard))


def prepare() -> None:
    """Prepare the fork server, once."""
    # Python ignores SIGXFSZ by default. Then the limit of the file size would not end a program that prints endlessly.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # Provide what programs expect from the system: `exit` and `quit`, the streams by name, and the pair of sockets with
    # which asyncio wakes its event loop.
    site.setquit()
    builtins.open = io.open = open_stream
    socket.socketpair = pipe_ends  # type: ignore[assignment]
    # Tracebacks of programs must not name files of this machine.
    for function in (open_stream, pipe_ends, PipeEnd.send):
        function.__code__ = function.__code__.replace(co_filename="<sandbox>")
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    gc.collect()
    gc.freeze()  # otherwise garbage collection in a program writes to the shared pages, which copies them


def run(seal: Seal, job: Job, descriptors: Sequence[int]) -> None:
    """Run the program and end the process."""
    try:
        seal.apply(job, descriptors)
    except BaseException:  # noqa: BLE001  boundary: nothing may run in a process that is not sealed
        # SIGUSR2 reports that sealing failed. A program cannot fake this, because it cannot send signals once sealed.
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(1)
    random.seed(0)  # fixed, so that a program that sets no seed prints the same output each time
    code = 1
    try:
        source = os.pread(PROGRAM, os.fstat(PROGRAM).st_size, 0)
        os.close(PROGRAM)
        if len(descriptors) > ANSWERS:
            calls, _, program = source.partition(b"\n")
            run_calls(program.decode("utf-8", "surrogatepass"), calls.decode(), _answer)
            code = 0
        else:
            code = _run_main(source)
    except BaseException:  # noqa: BLE001  # boundary: the program may break anything, even this code
        code = 1
    finally:
        as_main.finish(code)


def _answer(line: str) -> None:
    os.write(ANSWERS, f"{line}\n".encode())


def _run_main(source: bytes) -> int:
    # Tracebacks and `inspect` read the source from here.
    linecache.cache[NAME] = (lambda: source.decode("utf-8", "replace"),)
    try:
        code = compile(source, NAME, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError, SystemError) as error:
        if isinstance(error, SyntaxError) and len(error.text or "") > _LONG_LINE:
            error.text = None  # do not print a long line
        traceback.print_exception(type(error), error, None)
        return NOT_COMPILED
    try:
        return as_main.run(code, NAME, [NAME], raises=MemoryError)
    except MemoryError:
        sys.modules["__main__"].__dict__.clear()
        os.write(2, b"MemoryError\n")
        return NO_MEMORY


def open_stream(file, *args, **kwargs):  # type: ignore[no-untyped-def]
    """Open a file; /dev/stdin, /dev/stdout and /dev/stderr work although programs have no file system."""
    if isinstance(file, str) and file in _STREAMS:
        file = os.dup(_STREAMS[file])
    return _open(file, *args, **kwargs)


class PipeEnd(io.FileIO):
    """End of a pipe with the part of a socket's interface that asyncio uses."""

    recv = io.FileIO.read

    def send(self, data: bytes) -> int | None:
        """Write to the pipe. A closed pipe is an OSError, as asyncio expects."""
        try:
            return self.write(data)
        except ValueError as error:
            raise OSError(errno.EBADF, str(error)) from None

    def setblocking(self, blocking: bool) -> None:
        """Do nothing: reads and writes of these pipes never block."""


def pipe_ends(*_: object) -> tuple[PipeEnd, PipeEnd]:
    """Return the receiving and the sending end of a pipe, as a replacement for `socket.socketpair`."""
    read, write = os.pipe2(os.O_NONBLOCK)
    return PipeEnd(read, "r"), PipeEnd(write, "w")
