"""The fork server of programs that a model wrote. It first loads the modules that programs may import, then enters the
isolation that this machine allows. It has an empty environment, and imports only the files of this package that it
needs."""

import contextlib
import errno
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence

from verl_mas.environment.execution.contained import child, isolation, library, seccomp
from verl_mas.util.fork_server import CONTROL, FAILURE, CannotFork, Forks, die_with_parent, unsafe_state, why_not

_MAX_DESCRIPTORS = 256
_TRIAL = child.Job(cpu_s=5.0, memory=64 * 2**20, file_size=4096, threads=16)
_COUNT_S = 5.0


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
        child.prepare()
        if reason := unsafe_state():
            raise CannotFork("packages", reason)
        with open("/proc/self/statm") as file:
            address_space = int(file.read().split()[0]) * resource.getpagesize()
        layers = _isolate()
        seal = child.Seal(seccomp.Filter(seccomp.program()), os.getpid(), address_space)
        self._seal, self._count_again = _separate_user(seal, number, layers), 0.0
        if reason := why_not(lambda: _check_sealed(self._seal.of_slot(0))):
            raise CannotFork("seccomp", reason)
        self.greeting = {"seccomp": child.YES, **layers}

    def before_fork(self) -> None:
        """Count the tasks of this user, if the limit of programs' threads includes them. This takes about 30 ms."""
        if self._seal.counted and self._count_again <= time.monotonic():
            self._seal = self._seal._replace(tasks=isolation.tasks_of_user())
            self._count_again = time.monotonic() + _COUNT_S

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        cpu_s, memory, file_size, threads = limits
        job = child.Job(cpu_s, int(memory), int(file_size), int(threads))
        child.run(self._seal.of_slot(slot), job, descriptors)


def _isolate() -> dict[str, str]:
    """Enter the isolation that the machine allows, once for all programs. Returns for each layer `child.YES`, or the
    reason why the layer is not active."""
    namespaces = why_not(isolation.enter_namespaces)
    if not namespaces:
        isolation.enter_namespaces()
        _continue_inside()
    landlock = why_not(isolation.restrict_files)
    if not landlock:
        isolation.restrict_files()
    return {"namespaces": namespaces or child.YES, "landlock": landlock or child.YES}


def _separate_user(seal: child.Seal, number: int, layers: dict[str, str]) -> child.Seal:
    """Choose how a program's process drops the id of this user. The choice also decides how its threads are
    limited."""
    if os.getuid() == 0:
        reason = why_not(lambda: isolation.set_user(child.FIRST_USER + number % child.USERS))
        layers["user"] = reason or child.YES
        if not reason:
            layers["threads"] = child.YES
            return seal._replace(users=number)
    else:
        layers["user"] = "not root"
    isolation.drop_capabilities()
    reason = why_not(isolation.leave_users)
    layers["threads"] = (
        child.YES if not reason or isolation.tasks_of_user() else "the kernel does not limit root's threads"
    )
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


def _check_sealed(seal: child.Seal) -> None:
    """Seal this process, and test that the filter refuses forbidden calls."""
    seal.apply(_TRIAL, [os.dup(descriptor) for descriptor in (0, 0, 2, 0, FAILURE)])
    for attempt in (lambda: os.open("/", os.O_RDONLY), lambda: os.kill(os.getpid(), 0)):
        try:
            attempt()
        except OSError as error:
            if error.errno == errno.EPERM:
                continue
        raise RuntimeError("a sealed process could open a file or send a signal")
