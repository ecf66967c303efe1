"""The fork server: a process that imports modules once. Its forks have these modules within milliseconds.

This module needs only the standard library, so that any Python from 3.10 can run it. The server has one thread, and
stores no data of a fork. It passes the input of a fork on as descriptors, so no fork inherits memory of another fork.
`verl_mas.util.forks` has the code of the process that starts this server.
"""

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
MOST_SAID = 4000  # longest error text that is sent, cut at its beginning; as JSON, it fits in MAX_MESSAGE
BY_ITSELF, BY_LIMIT, NOT_STARTED, ON_REQUEST = range(4)
FAILURE = 4  # the descriptor on which a trial writes why it failed
_IDLE_S, _TRIAL_S = 5.0, 10
_CPUS = os.cpu_count() or 1
_PR_SET_PDEATHSIG = 1
NEW_USER = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)
_holding = ctypes.PyDLL(None, use_errno=True)  # calls through it keep the interpreter lock


class Order(NamedTuple):
    """A request to start a fork. `limits` are passed to `Forks.play`. Descriptors are sent with the same message."""

    number: int
    limits: Sequence[float]
    cpu_s: float = math.inf
    wall_s: float = math.inf


class Stop(NamedTuple):
    """A request to send a signal to the process group of a fork."""

    number: int
    signal: int


class Ended(NamedTuple):
    """How a fork ended. `reason` is BY_ITSELF, BY_LIMIT, NOT_STARTED or ON_REQUEST. `status` is the status of wait(2),
    or an errno for NOT_STARTED."""

    number: int
    reason: int
    status: int
    seconds: float
    cpu_seconds: float
    memory: int


class CannotFork(Exception):
    """This process cannot serve forks. The arguments are the part that fails, and the reason."""


class Forks:
    """Base class for a kind of fork.

    The server creates one object of a subclass, with the settings as argument. The constructor may raise CannotFork.
    """

    greeting: dict[str, str]
    """Message to the caller before the first fork. As JSON it fits in MAX_MESSAGE."""

    def before_fork(self) -> None:
        """Prepare the next fork; the server calls this method before each fork."""

    def fork(self) -> int:
        return os.fork()

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        """Do the work of the fork, which ends when this method returns.

        `slot` is the smallest number that no other running fork has.
        """
        raise NotImplementedError


def main() -> None:
    """Run the fork server. The arguments are the descriptor of the control socket, the kind of forks as module:class,
    and the settings as JSON."""
    descriptor, kind, settings = sys.argv[-3:]
    if int(descriptor) != CONTROL:
        os.dup2(int(descriptor), CONTROL)
        os.close(int(descriptor))
    control = socket.socket(fileno=CONTROL)
    # Reset signals, because this process inherits ignored and blocked signals from its parent.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGCHLD, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    wakeup, woken = os.pipe()
    os.set_blocking(woken, False)
    module, _, name = kind.partition(":")
    make: Callable[[object], Forks] = getattr(importlib.import_module(module), name)
    # `verl_mas` is a stub package here (see `forks._START`). Remove it, so that programs can import the real package.
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
        """Start and end forks, until the caller closes its end of the socket or is gone."""
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
        # Make the fork the leader of its own process group, before any signal is sent to the group.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self.running[pid] = Running(order.number, slot, order.cpu_s, started, started + order.wall_s)

    def _become(self, order: Order, descriptors: list[int], slot: int) -> None:
        try:
            os.setpgid(0, 0)  # the server does the same; either process may be first
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
                _signal(pid, signal.SIGKILL)  # kill processes that remain in its group
                seconds, cpu_s = time.monotonic() - running.started, used.ru_utime + used.ru_stime
                self._send(Ended(running.number, running.reason, status, seconds, cpu_s, used.ru_maxrss * 1024))

    def _send(self, ended: Ended) -> None:
        try:
            self.control.send(json.dumps(ended).encode())
        except ConnectionError:
            self.stop()

    def _enforce(self) -> float:
        """Kill forks that have reached a limit. Return the shortest time in seconds until another fork can reach a
        limit."""
        now, wait_s = time.monotonic(), _IDLE_S
        for pid, running in self.running.items():
            left = running.cpu_s - _cpu_seconds(pid)
            if left <= 0 or running.deadline <= now:
                if running.reason == BY_ITSELF:
                    running.reason = BY_LIMIT
                _signal(pid, signal.SIGKILL)
                continue
            # A fork with threads on all cores uses CPU time faster than wall time, so divide by the number of cores.
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
    """Return the CPU seconds of a process with all its threads. Unlike wall time, they do not depend on the load of the
    machine."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:  # the process has ended
        return 0.0


def checked(result: int, what: str) -> int:
    """Return the result of a call of the C library. Raises OSError if the call failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def bare_fork() -> int:
    """Fork without Python's fork hooks, which write to memory and so copy 1.4 MB of pages. It is for a process that
    only starts another process and waits."""
    return checked(int(_holding.fork()), "fork")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that forked it ends."""
    checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def own_namespaces(flags: int) -> None:
    """Enter new namespaces and, unless the user is root, a new user namespace. Raises OSError if the machine
    refuses."""
    user, group = os.getuid(), os.getgid()
    checked(_libc.unshare(flags | (NEW_USER if user else 0)), "unshare")
    if user:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as out:
                out.write(text)


def unsafe_state() -> str:
    """Return why this process must not be forked after its imports; empty if it may be forked."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "an import started a thread"
    with open("/proc/self/maps") as file:
        shared = [line for line in file if line.split()[1] in ("rw-s", "rwxs")]
    # A fork could change shared memory for the next fork.
    return f"an import left memory that processes share: {shared[0].strip()}" if shared else ""


def why_not(attempt: Callable[[], object]) -> str:
    """Try a function in a fork. Return the reason if it fails or does not end; empty if it succeeds."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(_TRIAL_S)
            os.dup2(write, FAILURE)
            attempt()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  boundary: the caller gets the reason
            os.write(FAILURE, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as file:
        reason = file.read().decode()
    status = os.waitpid(pid, 0)[1]
    return (reason or f"wait status {status}") if status else ""
