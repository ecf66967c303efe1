"""The fork server of programs that a model wrote, and the process of one program, which seals itself before it runs the
program.

The server first loads the modules that programs may import, then enters the isolation that this machine allows. It has
an empty environment, and imports only the files of this package that it needs.
"""

from __future__ import annotations

import builtins
import contextlib
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
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from verl_mas.environment.execution.contained import isolation, library, seccomp
from verl_mas.environment.execution.contained.harness import run_calls
from verl_mas.util import as_main
from verl_mas.util.fork_server import CONTROL, FAILURE, CannotFork, Forks, die_with_parent, unsafe_state, why_not

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
_MAX_DESCRIPTORS = 256
_COUNT_S = 5.0


class Job(NamedTuple):
    """The limits that a program's process sets in the kernel. The fork server, too, enforces `cpu_s`."""

    cpu_s: float
    memory: int
    file_size: int
    threads: int


class Seal(NamedTuple):
    """The isolation that the machine allows. The fork server has tested it."""

    filter: seccomp.Filter
    server: int  # process id of the fork server
    address_space: int  # bytes of the fork server's address space, with Python and the library
    users: int | None = None  # offset of the programs' user ids, one id per slot; None: programs get no such ids
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
    # Python ignores SIGXFSZ by default. Restore the signal, so that the limit of the file size ends a program that
    # prints endlessly.
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


_TRIAL = Job(cpu_s=5.0, memory=64 * 2**20, file_size=4096, threads=16)


class Sealed(Forks):
    """Forks a sealed process per program. `packages` maps each package that programs may import to its folder."""

    def __init__(self, packages: Mapping[str, str]):
        # If the machine runs out of memory, let the kernel end a program rather than the trainer.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_DESCRIPTORS, hard))
        number = os.getpid() * 64
        try:
            library.load(packages)
        except ImportError as error:
            raise CannotFork("packages", f"{type(error).__name__}: {error}") from None
        os.environ.clear()
        seccomp.answer_fstat()
        prepare()
        if reason := unsafe_state():
            raise CannotFork("packages", reason)
        with open("/proc/self/statm") as file:
            address_space = int(file.read().split()[0]) * resource.getpagesize()
        layers = _isolate()
        seal = Seal(seccomp.Filter(seccomp.program()), os.getpid(), address_space)
        self._seal, self._count_again = _separate_user(seal, number, layers), 0.0
        if reason := why_not(lambda: _check_sealed(self._seal.of_slot(0))):
            raise CannotFork("seccomp", reason)
        self.greeting = {"seccomp": YES, **layers}

    def before_fork(self) -> None:
        """Count the tasks of this user, if the limit of programs' threads includes them. This takes about 30 ms."""
        if self._seal.counted and self._count_again <= time.monotonic():
            self._seal = self._seal._replace(tasks=isolation.tasks_of_user())
            self._count_again = time.monotonic() + _COUNT_S

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        cpu_s, memory, file_size, threads = limits
        job = Job(cpu_s, int(memory), int(file_size), int(threads))
        run(self._seal.of_slot(slot), job, descriptors)


def _isolate() -> dict[str, str]:
    """Enter the isolation that the machine allows, once for all programs. Returns for each layer `YES`, or the
    reason why the layer is not active."""
    namespaces = why_not(isolation.enter_namespaces)
    if not namespaces:
        isolation.enter_namespaces()
        _continue_inside()
    landlock = why_not(isolation.restrict_files)
    if not landlock:
        isolation.restrict_files()
    return {"namespaces": namespaces or YES, "landlock": landlock or YES}


def _separate_user(seal: Seal, number: int, layers: dict[str, str]) -> Seal:
    """Choose how a program's process drops the id of this user. The choice also decides how its threads are
    limited."""
    if os.getuid() == 0:
        reason = why_not(lambda: isolation.set_user(FIRST_USER + number % USERS))
        layers["user"] = reason or YES
        if not reason:
            layers["threads"] = YES
            return seal._replace(users=number)
    else:
        layers["user"] = "not root"
    isolation.drop_capabilities()
    reason = why_not(isolation.leave_users)
    layers["threads"] = YES if not reason or isolation.tasks_of_user() else "the kernel does not limit root's threads"
    return seal._replace(user_namespace=not reason, counted=bool(reason))


def _continue_inside() -> None:
    """Continue as the first process of the new PID namespace. The old process waits, and both end together."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if not pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        die_with_parent(0)
        return
    os.close(CONTROL)
    while os.getppid() == parent and not os.waitpid(pid, os.WNOHANG)[0]:
        signal.sigtimedwait({signal.SIGCHLD}, 5)
    os._exit(0)


def _check_sealed(seal: Seal) -> None:
    """Seal this process, and test that the filter refuses forbidden calls."""
    seal.apply(_TRIAL, [os.dup(descriptor) for descriptor in (0, 0, 2, 0, FAILURE)])
    for attempt in (lambda: os.open("/", os.O_RDONLY), lambda: os.kill(os.getpid(), 0)):
        try:
            attempt()
        except OSError as error:
            if error.errno == errno.EPERM:
                continue
        raise RuntimeError("a sealed process could open a file or send a signal")
