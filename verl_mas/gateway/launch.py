"""Isolates the program of a session in a fork.

If the machine allows it, the program gets its own PID namespace. So it cannot see other processes or their keys, and
processes that it starts end with it. Before the program starts, its process sends a message on the descriptor for the
outcome. The worker reads the sender's process id from this message, and accepts an outcome only from this process. This
module needs only the standard library.
"""

import ctypes
import os
import signal
import struct
from collections.abc import Callable, Mapping

from verl_mas.util.fork_server import bare_fork, die_with_parent, own_namespaces

NEW_MOUNTS, NEW_PIDS = 0x00020000, 0x20000000
NO_SUID, NO_DEV, NO_EXEC, RECURSIVE, PRIVATE = 2, 4, 8, 16384, 1 << 18
OUTCOME = 3  # a single digit, because shells redirect only descriptors of one digit
# Signals that Python ignores; a program expects them to end it.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
libc = ctypes.CDLL(None, use_errno=True)


def isolated(descriptor: int, program: Callable[[], object]) -> None:
    """Call `program` in a new process, which `program` must end itself. This process then ends with the same status or
    signal."""
    # The worker sends SIGTERM to the process group. The program may handle the signal, so this process ignores it and
    # waits for the program.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        own_namespaces(NEW_MOUNTS | NEW_PIDS)
        apart = True
    except OSError:
        apart = False
    reads, writes = os.pipe()
    first = bare_fork()
    if not first:
        os.close(reads)
        os.write(writes, str(played(descriptor, writes, program, apart=apart)).encode())
        os._exit(0)
    os.close(writes)
    os.close(descriptor)
    os.waitpid(first, 0)
    end_as(int(os.read(reads, 16) or -signal.SIGKILL))


def played(descriptor: int, writes: int, program: Callable[[], object], *, apart: bool) -> int:
    """Run the program in a child process and return its status. If the program has its own PID namespace (`apart`),
    this process is its init process: when it ends, the kernel kills all other processes in the namespace."""
    die_with_parent(os.getppid())
    if apart:
        libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None)
        libc.mount(b"proc", b"/proc", b"proc", NO_SUID | NO_DEV | NO_EXEC, None)
    child = os.fork()
    if not child:
        os.close(writes)
        become(descriptor, program)
    os.close(descriptor)
    while True:
        # Orphans become children of this process, so wait for any child.
        process, status = os.wait()
        if process == child:
            return os.waitstatus_to_exitcode(status)


def become(descriptor: int, program: Callable[[], object]) -> None:
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(descriptor, b"\n")
    os.dup2(descriptor, OUTCOME)
    os.close(descriptor)
    # Drop the capabilities that this process has in its user namespace, as `exec` would.
    if os.getuid():
        libc.capset(struct.pack("<Ii", 0x20080522, 0), bytes(24))
    try:
        program()
    finally:
        os._exit(1)


def execute(command: list[str], environ: Mapping[str, str]) -> None:
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def end_as(status: int) -> None:
    """End this process as the program ended: by a signal, or with a status."""
    if status < 0 and -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)
