"""The caller's side of a fork server. It starts the server process, and requests forks for any thread or event loop."""

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

# Code that starts the server. It makes a stub of the package `verl_mas`, because the real package imports more modules,
# and other interpreters may not have it.
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
    """The fork server died. The message has its last output. Whether its forks have succeeded is unknown."""


class Refused(Exception):
    """The fork server refused to serve. The arguments name the part that fails, and the reason."""


@dataclass
class Fork:
    """A process that the server forks on request. It may not have started yet."""

    number: int
    ended: Future[Ended]
    _connection: _Connection

    def signal(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process group of the fork, if the fork has not ended."""
        with contextlib.suppress(OSError):
            self._connection.socket.send(json.dumps(Stop(self.number, number)).encode())

    def end(self, wait_s: float) -> None:
        """Send SIGTERM, wait up to `wait_s` for the end, then send SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            wait([self.ended], wait_s)

    def status(self) -> int:
        """Wait for the end, and return the exit code or a negative signal number."""
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
        """Receive the greeting, and a message for each fork that ends, until the connection ends."""
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
        """Mark the server as lost, and raise ServerLost in all waiting callers."""
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
    """A fork server process. It starts at once, and ends when this object is garbage-collected or this process exits.
    `kind` names a subclass of `verl_mas.util.fork_server.Forks` as "module:class". `python` is the command of an
    interpreter, with its options."""

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
        # The thread must not refer to this object. The process ends when the object is garbage-collected, and a
        # reference would keep the object alive.
        threading.Thread(target=self._connection.listen, name="fork server", daemon=True).start()
        self.close = weakref.finalize(self, _close, self._connection, os.getpid())
        """End the process and its forks. Callers that wait for a fork get ServerLost."""

    @property
    def usable(self) -> bool:
        """Whether forks can be requested.

        No fork can be requested after the server has ended, or in a fork of the process that started the server.
        """
        return not self._connection.lost and self.close.alive and os.getpid() == self._owner

    def fork(
        self,
        descriptors: Sequence[int],
        limits: Sequence[float] = (),
        *,
        cpu_s: float = math.inf,
        wall_s: float = math.inf,
    ) -> Fork:
        """Start a fork. It is killed after `cpu_s` CPU seconds or `wall_s` seconds."""
        order = Order(next(self._numbers), limits, cpu_s, wall_s)
        ended = _running(Future[Ended]())
        with self._connection.lock:
            if self._connection.lost:
                raise ServerLost(_LOST)
            self._connection.ended[order.number] = ended
        try:
            socket.send_fds(self._connection.socket, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            # If the future is no longer in `ended`, the listening thread has removed it, and sets ServerLost as its
            # exception.
            with self._connection.lock:
                if self._connection.ended.pop(order.number, None):
                    raise ServerLost(f"{_LOST}: {error}") from None
        return Fork(order.number, ended, self._connection)


class Restarted:
    """A fork server that starts on first use, and is restarted if it is lost. All threads may use it."""

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
    """Return the last part of the output that a process has printed into a file."""
    size = os.fstat(printed.fileno()).st_size  # a seek would move the position at which the process writes
    return os.pread(printed.fileno(), _MOST_PRINTED, max(0, size - _MOST_PRINTED)).decode(errors="replace")


def _running(future: Future[T]) -> Future[T]:
    """Mark a future as running, so that a waiting caller cannot cancel it."""
    future.set_running_or_notify_cancel()
    return future


def _close(connection: _Connection, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the owner must not end the server
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.end()
