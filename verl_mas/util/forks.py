"""The caller's side of a fork server: its process, and the forks that it starts for any thread or event loop."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, TypeVar

from verl_mas.util.fork_server import MAX_MESSAGE, NOT_STARTED, Ended, Order, Stop

# Its files are found without this package, which imports more, and which other interpreters do not have.
_START = (
    "import sys, types; sys.path[:] = filter(None, sys.path); package = types.ModuleType('verl_mas'); "
    "package.__path__ = [sys.argv[1]]; sys.modules['verl_mas'] = package; "
    "from verl_mas.util.fork_server import main; main()"
)
T = TypeVar("T")
_PACKAGE = str(Path(__file__).parents[1])
_MOST_PRINTED = 4000
_LOST = "the fork server died"


class ServerLost(Exception):
    """The fork server died, with what it printed before; it says nothing about its forks."""


class Refused(Exception):
    """The fork server cannot serve: what cannot, and the reason."""


@dataclass
class Fork:
    """A process that the server has forked, or will."""

    number: int
    ended: Future[Ended]
    _connection: _Connection

    def signal(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it and to the processes of its group, if it has not ended."""
        with contextlib.suppress(OSError):
            self._connection.socket.send(json.dumps(Stop(self.number, number)).encode())

    def end(self, wait_s: float) -> None:
        """SIGTERM, and after a while SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            wait([self.ended], wait_s)

    def status(self) -> int:
        """The exit code, or a negative signal; waits for the end."""
        ended = self.ended.result()
        if ended.reason == NOT_STARTED:
            raise ServerLost(f"no process could be started: {os.strerror(ended.status)}")
        return os.waitstatus_to_exitcode(ended.status)


@dataclass
class _Connection:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    printed: IO[bytes]
    greeting: Future[dict[str, str]]
    ended: dict[int, Future[Ended]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    lost: bool = False

    def listen(self) -> None:
        """Until the server is gone."""
        try:
            while message := self._receive():
                fields = json.loads(message)
                if self.greeting.done():
                    ended = Ended(*fields)
                    self.ended.pop(ended.number).set_result(ended)
                elif "refused" in fields:
                    self.greeting.set_exception(Refused(*fields["refused"]))
                else:
                    self.greeting.set_result(fields)
        finally:
            self._lose()

    def _lose(self) -> None:
        """Whoever waits gets ServerLost."""
        with self.lock:
            self.lost, waiting, self.ended = True, self.ended, {}
        self.end()
        lost = ServerLost(self.last_words())
        if not self.greeting.done():
            self.greeting.set_exception(lost)
        for future in waiting.values():
            future.set_exception(lost)
        self.socket.close()
        self.printed.close()

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(MAX_MESSAGE)
        except OSError:
            return b""

    def end(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def last_words(self) -> str:
        text = end_of(self.printed).strip()
        return f"{_LOST}: {text}" if text else _LOST


class ForkServer:
    """A process that starts at once and ends with this object, or with this process. `kind` is "module:class" of a
    `verl_mas.util.fork_server.Forks`; `python` are an interpreter and its options."""

    def __init__(
        self,
        kind: str,
        settings: object,
        *,
        python: Sequence[str] = (sys.executable,),
        env: Mapping[str, str],
        cwd: str | None = None,
    ):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        printed = open(os.memfd_create("printed", os.MFD_CLOEXEC), "rb")  # noqa: SIM115  closed by `listen`
        with theirs:
            process = subprocess.Popen(
                [*python, "-c", _START, _PACKAGE, str(theirs.fileno()), kind, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=[theirs.fileno()],
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        self.pid, self._numbers, self._owner = process.pid, count(), os.getpid()
        self.greeting = _running(Future[dict[str, str]]())
        self._connection = _Connection(process, ours, printed, self.greeting)
        # The thread has no reference to this object, whose end is that of the process.
        threading.Thread(target=self._connection.listen, name="fork server", daemon=True).start()
        self.close = weakref.finalize(self, _close, self._connection, os.getpid())
        """End the process with its forks; whoever waits for one gets ServerLost."""

    @property
    def usable(self) -> bool:
        """Not after its end, and not in a fork of the process that started it."""
        return not self._connection.lost and self.close.alive and os.getpid() == self._owner

    def fork(
        self,
        descriptors: Sequence[int],
        limits: Sequence[float] = (),
        *,
        cpu_s: float = math.inf,
        wall_s: float = math.inf,
    ) -> Fork:
        """Start a process, which ends at the limits of CPU seconds and seconds."""
        order = Order(next(self._numbers), limits, cpu_s, wall_s)
        ended = _running(Future[Ended]())
        with self._connection.lock:
            if self._connection.lost:
                raise ServerLost(_LOST)
            self._connection.ended[order.number] = ended
        try:
            socket.send_fds(self._connection.socket, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            # Without it there, the listening thread ends what waits.
            with self._connection.lock:
                if self._connection.ended.pop(order.number, None):
                    raise ServerLost(f"{_LOST}: {error}") from None
        return Fork(order.number, ended, self._connection)


class Restarted:
    """A fork server that starts on first use, and again if it is lost. For all threads."""

    def __init__(self, start: Callable[[], ForkServer]):
        self._start, self._lock = start, threading.Lock()
        self.server: ForkServer | None = None
        self.closed = False

    def usable(self) -> ForkServer:
        with self._lock:
            if self.server is None or not self.server.usable:
                self.server = self._start()
            return self.server

    def close(self) -> None:
        with self._lock:
            self.closed = True
            if self.server is not None:
                self.server.close()


def end_of(printed: IO[bytes]) -> str:
    """The last that a process has printed into a file."""
    size = os.fstat(printed.fileno()).st_size  # the position in the file is that of the process, too
    return os.pread(printed.fileno(), _MOST_PRINTED, max(0, size - _MOST_PRINTED)).decode(errors="replace")


def _running(future: Future[T]) -> Future[T]:
    """One that whoever waits for it cannot cancel."""
    future.set_running_or_notify_cancel()
    return future


def _close(connection: _Connection, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork of the process that started it
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.end()
