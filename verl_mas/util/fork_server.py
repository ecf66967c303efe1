"""The process that others are forked from: what it has imported, a fork has after milliseconds.

Standard library alone, so that any Python from 3.10 runs it. It has one thread and holds nothing of any fork: what a
fork gets passes by as descriptors, so no fork inherits memory of another one. The caller's side is
`verl_mas.util.forks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CONTROL = 3  # the descriptor of the socket to the caller
MAX_MESSAGE, MAX_DESCRIPTORS = 65_536, 8
MOST_SAID = 4000  # characters of an error, from its end: as JSON they are below MAX_MESSAGE
BY_ITSELF, BY_LIMIT, NOT_STARTED, ON_REQUEST = range(4)
FAILURE = 4  # the descriptor on which a trial says why it failed
_IDLE_S, _TRIAL_S = 5.0, 10
_CPUS = os.cpu_count() or 1
_PR_SET_PDEATHSIG = 1
NEW_USER = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)
_holding = ctypes.PyDLL(None, use_errno=True)  # keeps the lock of the interpreter


class Order(NamedTuple):
    """A fork to start. `limits` are for the kind of forks; descriptors are sent beside it."""

    number: int
    limits: Sequence[float]
    cpu_s: float = math.inf
    wall_s: float = math.inf


class Stop(NamedTuple):
    """A signal to a fork and to the processes of its group."""

    number: int
    signal: int


class Ended(NamedTuple):
    """How a fork ended. `reason` is one of the four above; `status` is that of wait(2), or of NOT_STARTED an errno."""

    number: int
    reason: int
    status: int
    seconds: float
    cpu_seconds: float
    memory: int


class CannotFork(Exception):
    """This process cannot serve: what cannot, and the reason."""


class Forks:
    """A kind of forks. It is made once, in the server, from its settings; or it raises CannotFork."""

    greeting: dict[str, str]
    """Sent to the caller before the first fork. It is below MAX_MESSAGE."""

    def before_fork(self) -> None:
        """Called in the server."""

    def fork(self) -> int:
        return os.fork()

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        """Called in the fork, which ends after it. `slot` is a small number that no other fork has at the time."""
        raise NotImplementedError


def main() -> None:
    """`argv`: the descriptor of the control socket, the kind of forks as module:class, and its settings as JSON."""
    descriptor, kind, settings = sys.argv[-3:]
    if int(descriptor) != CONTROL:
        os.dup2(int(descriptor), CONTROL)
        os.close(int(descriptor))
    control = socket.socket(fileno=CONTROL)
    # A process inherits which signals its parent ignores and blocks.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGCHLD, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    wakeup, woken = os.pipe()
    os.set_blocking(woken, False)
    module, _, name = kind.partition(":")
    make: Callable[[object], Forks] = getattr(importlib.import_module(module), name)
    # `verl_mas` is no real package here; whoever imports it gets that one.
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == __name__.split(".")[0]]:
        del sys.modules[loaded]
    del sys.argv[1:]
    try:
        forks = make(json.loads(settings))
    except CannotFork as error:
        control.send(json.dumps({"refused": [text[-MOST_SAID:] for text in error.args]}).encode())
        os._exit(1)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    control.send(json.dumps(forks.greeting).encode())
    server = Server(control, (wakeup, woken), forks)
    server.serve()
    server.stop()


@dataclass
class Running:
    number: int
    slot: int
    cpu_s: float
    started: float
    deadline: float
    reason: int = BY_ITSELF


@dataclass
class Server:
    control: socket.socket
    wakeup: tuple[int, int]
    forks: Forks
    running: dict[int, Running] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)

    def serve(self) -> None:
        """Until the caller closes its end of the socket, or is gone."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wakeup[0], select.POLLIN)
        parent, wait_s = os.getppid(), _IDLE_S
        while os.getppid() == parent:
            ready = [descriptor for descriptor, _ in poller.poll(max(1, wait_s * 1000))]
            if self.wakeup[0] in ready:
                os.read(self.wakeup[0], 4096)
            self._reap()
            if self.control.fileno() in ready and not self._receive():
                return
            wait_s = self._enforce()

    def _receive(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, MAX_MESSAGE, MAX_DESCRIPTORS)
        except ConnectionError:
            return False
        if not message:
            return False
        fields = json.loads(message)
        if len(fields) == len(Stop._fields):
            self._stop(Stop(*fields))
        else:
            self._start(Order(*fields), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, order: Order, descriptors: list[int]) -> None:
        slots = {running.slot for running in self.running.values()}
        slot = next(number for number in range(len(slots) + 1) if number not in slots)
        self.forks.before_fork()
        started = time.monotonic()
        try:
            pid = self.forks.fork()
        except OSError as error:
            self._send(Ended(order.number, NOT_STARTED, error.errno or 0, 0.0, 0.0, 0))
            return
        if pid == 0:
            self._become(order, descriptors, slot)
        # A group of its own, before any signal is sent to it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self.running[pid] = Running(order.number, slot, order.cpu_s, started, started + order.wall_s)

    def _become(self, order: Order, descriptors: list[int], slot: int) -> None:
        try:
            os.setpgid(0, 0)  # whichever of the two is first
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(self.pid)
            self.control.close()
            for descriptor in self.wakeup:
                os.close(descriptor)
            self.forks.play(order.limits, descriptors, slot)
        finally:
            os._exit(1)

    def _stop(self, stop: Stop) -> None:
        for pid, running in self.running.items():
            if running.number == stop.number:
                running.reason = ON_REQUEST
                _signal(pid, stop.signal)

    def _reap(self) -> None:
        while self.running:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            running = self.running.pop(pid, None)
            if running is not None:
                _signal(pid, signal.SIGKILL)  # what it has left in its group
                seconds, cpu_s = time.monotonic() - running.started, used.ru_utime + used.ru_stime
                self._send(Ended(running.number, running.reason, status, seconds, cpu_s, used.ru_maxrss * 1024))

    def _send(self, ended: Ended) -> None:
        try:
            self.control.send(json.dumps(ended).encode())
        except ConnectionError:
            self.stop()

    def _enforce(self) -> float:
        """End forks that reached their limits. Returns the seconds until the next could."""
        now, wait_s = time.monotonic(), _IDLE_S
        for pid, running in self.running.items():
            left = running.cpu_s - _cpu_seconds(pid)
            if left <= 0 or running.deadline <= now:
                if running.reason == BY_ITSELF:
                    running.reason = BY_LIMIT
                _signal(pid, signal.SIGKILL)
                continue
            # All its threads may run at once.
            wait_s = min(wait_s, max(left / _CPUS, 0.01), running.deadline - now)
        return wait_s

    def stop(self) -> None:
        for pid in self.running:
            _signal(pid, signal.SIGKILL)
        os._exit(0)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all its threads, which a busy machine does not increase."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:  # It has ended.
        return 0.0


def checked(result: int, what: str) -> int:
    """The result of a call of the C library; an OSError if it failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def bare_fork() -> int:
    """Fork without Python's hooks, which copy 1.4 MB of pages: for a process that starts the next one, and waits."""
    return checked(int(_holding.fork()), "fork")


def die_with_parent(parent: int) -> None:
    """End this process when the thread that forked it ends."""
    checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def own_namespaces(flags: int) -> None:
    """Enter new namespaces; who is not root needs one of users, too. An OSError says that the machine refuses it."""
    user, group = os.getuid(), os.getgid()
    checked(_libc.unshare(flags | (NEW_USER if user else 0)), "unshare")
    if user:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as out:
                out.write(text)


def unsafe_state() -> str:
    """Why this process must not be forked after its imports; empty if it may."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "an import started a thread"
    with open("/proc/self/maps") as file:
        shared = [line for line in file if line.split()[1] in ("rw-s", "rwxs")]
    # A fork could change it for the next one.
    return f"an import left memory that processes share: {shared[0].strip()}" if shared else ""


def why_not(attempt: Callable[[], object]) -> str:
    """Try a function in a fork: the reason if it fails or does not end."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(_TRIAL_S)
            os.dup2(write, FAILURE)
            attempt()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  boundary: the caller has the reason
            os.write(FAILURE, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as file:
        reason = file.read().decode()
    status = os.waitpid(pid, 0)[1]
    return (reason or f"wait status {status}") if status else ""
