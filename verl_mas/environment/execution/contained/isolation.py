"""Isolates the fork server, and so all programs, in addition to the seccomp filter of each program.

The functions raise OSError if the machine does not allow a step.
"""

import ctypes
import os
import resource
import struct

from verl_mas.util.fork_server import NEW_USER, checked, own_namespaces

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
# mount, PID, network, IPC, UTS and cgroup namespaces
_NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 32, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT, _CAPSET, _LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 155, 126, 444, 446


def leave_no_core_dump() -> None:
    """Make this process not dumpable. A core size limit of 0 would not prevent the kernel from starting the machine's
    crash reporter."""
    checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def leave_users() -> None:
    """Enter a user namespace in which no user ids are mapped, so that this user has no id."""
    checked(_libc.unshare(NEW_USER), "unshare")


def enter_namespaces() -> None:
    """Enter new mount, network, IPC, UTS and cgroup namespaces with an empty root folder and, unless the user is root,
    a new user namespace. Processes that are forked later are in a new PID namespace."""
    own_namespaces(_NAMESPACES)
    _mount(None, b"/", None, _RECURSIVE | _PRIVATE)
    flags = _NO_SUID | _NO_DEV | _NO_EXEC
    _mount(b"tmpfs", b"/tmp", b"tmpfs", flags, b"size=4k")
    os.chdir("/tmp")
    checked(_libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    checked(_libc.umount2(b".", _DETACH), "umount")
    os.chdir("/")
    _mount(None, b"/", None, flags | _REMOUNT | _READ_ONLY)


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    checked(_libc.mount(source, target, kind, flags, data), "mount")


def restrict_files() -> None:
    """Apply a Landlock ruleset without rules. As far as the kernel supports it, this denies access to all files and TCP
    ports, and signals to processes outside of the sandbox."""
    version = checked(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1), "landlock")
    files = (1 << (13 if version == 1 else 14 if version == 2 else 15 if version < 5 else 16)) - 1
    attributes = struct.pack("<QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = checked(_libc.syscall(_LANDLOCK_CREATE, attributes, size, 0), "landlock")
    try:
        checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        checked(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def set_user(user: int) -> None:
    """Switch to another user. This cannot be undone, and drops the capabilities of root."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_capabilities() -> None:
    header = struct.pack("<Ii", 0x20080522, 0)
    checked(_libc.syscall(_CAPSET, header, bytes(24)), "capset")


def tasks_of_user() -> int:
    """Return the number of tasks that the kernel counts for this user, in all containers. It is measured as the lowest
    RLIMIT_NPROC with which a fork succeeds, and is 0 if the limit does not apply."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, _lowest_limit().to_bytes(4, "little"))
        finally:
            os._exit(0)
    os.close(write)
    tasks = int.from_bytes(os.read(read, 4), "little")
    os.close(read)
    os.waitpid(pid, 0)
    return tasks


def _lowest_limit() -> int:
    low, high, hard = 0, 1 << 20, resource.getrlimit(resource.RLIMIT_NPROC)[1]
    while low < high:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_NPROC, (middle if hard == -1 else min(middle, hard), hard))
        try:
            pid = os.fork()
        except BlockingIOError:
            low = middle + 1
            continue
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        high = middle
    return low
