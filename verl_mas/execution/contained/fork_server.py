"""The process that programs are forked from. It imports the library once, and holds nothing of any program.

Programs, inputs and outputs pass through it as descriptors alone, so a program inherits no memory of another one. It
has one thread, an empty environment, and imports nothing of this package beside the files of this folder. It starts
with the library, then enters the isolation that this machine allows, then serves.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import child, isolation, library, seccomp
from .protocol import ANSWERS, BY_ITSELF, BY_LIMIT, MAX_MESSAGE, NOT_STARTED, ON_REQUEST, YES, Job, ProgramEnd, pack

CONTROL = 3
_MAX_DESCRIPTORS = 256
_TRIAL = Job(0, cpu_s=5.0, wall_s=10.0, memory=64 * 2**20, file_size=4096, threads=16)


class CannotContain(Exception):
    """This machine cannot contain programs, or cannot import the packages that they may: what, and the reason."""


def main() -> None:
    """`argv`: the folder of this package, the descriptor of the control socket, the folders of the packages as JSON."""
    _, _, descriptor, packages = sys.argv
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
    try:
        layers, seal = _prepare(json.loads(packages))
    except CannotContain as error:
        what, reason = error.args
        control.send(json.dumps({"refused": what, "reason": reason}).encode())
        os._exit(1)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for name in [name for name in sys.modules if name.split(".")[0] == __package__]:
        del sys.modules[name]
    control.send(json.dumps({"layers": layers}).encode())
    server = Server(control, wakeup, seal)
    server.serve()
    server.stop()


def _prepare(packages: Mapping[str, str]) -> tuple[dict[str, str], child.Seal]:
    # The kernel ends a program rather than the trainer if the machine has no memory left.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_DESCRIPTORS, hard))
    number = os.getpid() * 64
    try:
        library.load(packages)
    except ImportError as error:
        raise CannotContain("packages", f"{type(error).__name__}: {error}") from None
    os.environ.clear()
    seccomp.answer_fstat()
    child.prepare()
    _check_state()
    with open("/proc/self/statm") as file:
        address_space = int(file.read().split()[0]) * resource.getpagesize()
    layers = _isolate()
    seal = child.Seal(seccomp.Filter(seccomp.program()), os.getpid(), address_space)
    seal = _separate_user(seal, number, layers)
    reason = _fails(lambda: _check_sealed(seal.of_slot(0)))
    if reason:
        raise CannotContain("seccomp", reason)
    return {"seccomp": YES, **layers}, seal


def _check_state() -> None:
    """Refuse what would make forks unsafe; packages may leave such a state."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise CannotContain("packages", "an import started a thread")
    with open("/proc/self/maps") as file:
        shared = [line for line in file if line.split()[1] in ("rw-s", "rwxs")]
    if shared:  # A program could change it for the next one.
        raise CannotContain("packages", f"an import left memory that processes share: {shared[0].strip()}")


def _isolate() -> dict[str, str]:
    """Enter what the machine allows, once for all programs: YES, or why not."""
    namespaces = _fails(isolation.enter_namespaces)
    if not namespaces:
        isolation.enter_namespaces()
        _continue_inside()
    landlock = _fails(isolation.restrict_files)
    if not landlock:
        isolation.restrict_files()
    return {"namespaces": namespaces or YES, "landlock": landlock or YES}


def _separate_user(seal: child.Seal, number: int, layers: dict[str, str]) -> child.Seal:
    """How a program's process leaves this user, which also bounds its threads."""
    if os.getuid() == 0:
        reason = _fails(lambda: isolation.set_user(child.FIRST_USER + number % child.USERS))
        layers["user"] = reason or YES
        if not reason:
            layers["threads"] = YES
            return seal._replace(users=number)
    else:
        layers["user"] = "not root"
    isolation.drop_capabilities()
    reason = _fails(lambda: isolation.unshare(isolation.NEW_USER))
    layers["threads"] = YES if not reason or isolation.tasks_of_user() else "the kernel does not limit root's threads"
    return seal._replace(user_namespace=not reason, counted=bool(reason))


def _continue_inside() -> None:
    """Continue as the first process of the new PID namespace; this one waits, and the two end together."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if not pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        isolation.die_with_parent(0)
        return
    os.close(CONTROL)
    while os.getppid() == parent and not os.waitpid(pid, os.WNOHANG)[0]:
        signal.sigtimedwait({signal.SIGCHLD}, 5)
    os._exit(0)


def _fails(attempt: Callable[[], object]) -> str | None:
    """Try a function in a process of its own: the reason if it fails."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.dup2(write, ANSWERS)
            attempt()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  boundary: the caller has the reason
            os.write(ANSWERS, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as file:
        reason = file.read().decode()
    status = os.waitpid(pid, 0)[1]
    return (reason or f"wait status {status}") if status else None


def _check_sealed(seal: child.Seal) -> None:
    """Seal this process, and try what must be refused by the filter."""
    seal.apply(_TRIAL, [os.dup(descriptor) for descriptor in (0, 0, 2, 0, ANSWERS)])
    for attempt in (lambda: os.open("/", os.O_RDONLY), lambda: os.kill(os.getpid(), 0)):
        try:
            attempt()
        except OSError as error:
            if error.errno == errno.EPERM:
                continue
        raise RuntimeError("a sealed process could open a file or send a signal")


_IDLE_S = 5.0
_CPUS = os.cpu_count() or 1


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
    wakeup: int
    seal: child.Seal
    running: dict[int, Running] = field(default_factory=dict)
    count_again: float = 0.0

    def serve(self) -> None:
        """Until the caller closes its end of the socket, or is gone."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wakeup, select.POLLIN)
        parent, wait_s = os.getppid(), _IDLE_S
        while os.getppid() == parent:
            ready = [descriptor for descriptor, _ in poller.poll(max(1, wait_s * 1000))]
            if self.wakeup in ready:
                os.read(self.wakeup, 4096)
            self._reap()
            if self.control.fileno() in ready and not self._receive():
                return
            wait_s = self._enforce()

    def _receive(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, MAX_MESSAGE, 8)
        except ConnectionError:
            return False
        if not message:
            return False
        job = json.loads(message)
        if isinstance(job, int):
            self._kill(job)
        else:
            self._start(Job(*job), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, job: Job, descriptors: list[int]) -> None:
        slots = {running.slot for running in self.running.values()}
        slot = next(number for number in range(len(slots) + 1) if number not in slots)
        seal = self._counted().of_slot(slot)
        started = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            self._send(ProgramEnd(job.number, NOT_STARTED, error.errno or 0, 0.0, 0.0, 0))
            return
        if pid == 0:
            child.run(seal, job, descriptors)
        self.running[pid] = Running(job.number, slot, job.cpu_s, started, started + job.wall_s)

    def _counted(self) -> child.Seal:
        """The seal with the tasks of this user, if programs' threads are among them. Counting takes some 30 ms."""
        if self.seal.counted and self.count_again <= time.monotonic():
            self.seal = self.seal._replace(tasks=isolation.tasks_of_user())
            self.count_again = time.monotonic() + _IDLE_S
        return self.seal

    def _kill(self, number: int) -> None:
        for pid, running in self.running.items():
            if running.number == number:
                running.reason = ON_REQUEST
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self.running:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            running = self.running.pop(pid, None)
            if running is not None:
                seconds, cpu_s = time.monotonic() - running.started, used.ru_utime + used.ru_stime
                self._send(ProgramEnd(running.number, running.reason, status, seconds, cpu_s, used.ru_maxrss * 1024))

    def _send(self, ended: ProgramEnd) -> None:
        try:
            self.control.send(pack(ended))
        except ConnectionError:
            self.stop()

    def _enforce(self) -> float:
        """End programs that reached their limits. Returns the seconds until the next could."""
        now, wait_s = time.monotonic(), _IDLE_S
        for pid, running in self.running.items():
            left = running.cpu_s - _cpu_seconds(pid)
            if left <= 0 or running.deadline <= now:
                if running.reason == BY_ITSELF:
                    running.reason = BY_LIMIT
                os.kill(pid, signal.SIGKILL)
                continue
            # All its threads may run at once.
            wait_s = min(wait_s, max(left / _CPUS, 0.01), running.deadline - now)
        return wait_s

    def stop(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all its threads, which a busy machine does not increase."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:  # It has ended.
        return 0.0
