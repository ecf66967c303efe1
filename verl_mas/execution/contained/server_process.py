"""The caller's side of one fork server: what it needs of the machine, its process, and the programs that it runs for an
event loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from verl_mas.errors import ConfigError
from verl_mas.execution.contained.protocol import MAX_MESSAGE, Job, ProgramEnd, pack
from verl_mas.execution.executor import SETTING

# This package's folder comes last, so that none of its files is taken for one of the standard library.
_START = "import sys; sys.path[:] = [*sys.path[1:], sys.argv[1]]; from contained.fork_server import main; main()"
# Nothing of the caller's environment. Sets are iterated in the same order in each run.
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
# Python itself may need them to start.
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONHOME")
_START_S = 60.0


class ServerLost(Exception):
    """The fork server died; it says nothing about the programs that it ran."""


class ServerProcess:
    """A fork server, used by one event loop at a time."""

    def __init__(self, packages: Mapping[str, str]):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = open(os.memfd_create("errors", os.MFD_CLOEXEC), "rb")  # noqa: SIM115  closed by `_end`
        folder = str(Path(__file__).parents[1])
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-c", _START, folder, str(theirs.fileno()), json.dumps(dict(packages))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT | {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        ours.setblocking(False)
        self.pid = process.pid
        self._packages = packages
        self._socket = ours
        self._numbers = itertools.count()
        self._jobs: dict[int, asyncio.Future[ProgramEnd]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[None] | None = None
        self.layers: dict[str, str] = {}
        self.lost = False
        self._end = weakref.finalize(self, _end, process, ours, self._errors, os.getpid())

    @property
    def free(self) -> bool:
        """Whether no event loop that still runs uses it."""
        return self.loop is None or self.loop.is_closed()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this event loop. Programs of a loop that was closed are ended."""
        for future in list(self._jobs.values()):
            self.kill(future)
        self._jobs.clear()
        self.loop = loop
        self._ready = loop.create_future()
        self._ready.add_done_callback(_seen)
        if self.layers:
            self._ready.set_result(None)
        loop.add_reader(self._socket, self._receive)

    async def started(self) -> None:
        if self.layers and not self.lost:
            return
        assert self._ready is not None
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), _START_S)
        except asyncio.TimeoutError:
            self.close(f" within {_START_S:.0f} s")
            await self._ready

    def submit(self, job: Job, descriptors: Sequence[int]) -> asyncio.Future[ProgramEnd]:
        """Start a program; the future has how it ended. The job's number is replaced."""
        assert self.loop is not None
        number = next(self._numbers)
        future: asyncio.Future[ProgramEnd] = self.loop.create_future()
        future.add_done_callback(_seen)
        self._jobs[number] = future
        try:
            socket.send_fds(self._socket, [pack(job._replace(number=number))], descriptors)
        except OSError:
            self.close()
        return future

    def kill(self, future: asyncio.Future[ProgramEnd]) -> None:
        """End a program; the future tells when it has ended."""
        for number in [number for number, job in self._jobs.items() if job is future]:
            with contextlib.suppress(OSError):
                self._socket.send(pack(number))

    def _receive(self) -> None:
        while not self.lost:
            try:
                message = self._socket.recv(MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self.close()
            elif not self.layers:
                self._begin(json.loads(message))
            else:
                ended = ProgramEnd(*json.loads(message))
                future = self._jobs.pop(ended.number, None)
                if future is not None and not future.done():
                    future.set_result(ended)

    def _begin(self, message: Mapping[str, object]) -> None:
        assert self._ready is not None
        layers = message.get("layers")
        if isinstance(layers, dict):
            self.layers = layers
            self._ready.set_result(None)
        else:
            self._ready.set_exception(refused(str(message["refused"]), str(message["reason"]), self._packages))
            self.close()

    def close(self, reason: str = "", error: type[Exception] = ServerLost) -> None:
        """End the process and its programs; whoever waits for one gets the error."""
        if self.lost:
            return
        self.lost = True
        text = reason + self._output()
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(self._socket)
            for future in (self._ready, *self._jobs.values()):
                if future is not None and not future.done():
                    future.set_exception(error(text))
        self._jobs.clear()
        self._end()

    def _output(self) -> str:
        """What the process printed before it failed."""
        descriptor = self._errors.fileno()  # Its position is that of the process, too.
        size = os.fstat(descriptor).st_size
        text = os.pread(descriptor, 4000, max(0, size - 4000)).decode(errors="replace").strip()
        return f": {text}" if text else ""


def _seen(future: asyncio.Future[Any]) -> None:
    """Whoever waits for it may be cancelled; then asyncio would log its exception as one that was never seen."""
    if not future.cancelled():
        future.exception()


def _end(process: subprocess.Popen[bytes], ours: socket.socket, errors: IO[bytes], owner: int) -> None:
    ours.close()
    if os.getpid() != owner:  # a fork of the process that started it
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    errors.close()


# What packages import, and what is imported with them.
_WITH = {"sympy": ("mpmath",)}


def check_machine() -> None:
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        raise refused("seccomp", f"{platform.system()} on {platform.machine()}", {})


def refused(what: str, reason: str, packages: Mapping[str, str]) -> ConfigError:
    """The error of a machine without the filter of system calls, or of a package that cannot be used."""
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


def package_folders(packages: Iterable[str]) -> dict[str, str]:
    """The folder of each package, and of those that they need."""
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
