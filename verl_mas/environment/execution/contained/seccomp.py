"""A seccomp filter (classic BPF) with the system calls that a contained program may make. It is for Linux on x86-64.

The list has no call that takes a path, opens a file, connects, starts a process or reaches another process. A call that
is not in the list fails with EPERM, which Python raises as an exception. A call with another ABI, which would bypass
the filter, kills the program.
"""

import ctypes
import mmap
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple

from verl_mas.util.fork_server import checked

ALLOWED = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "pwrite64": 18,
    "readv": 19, "writev": 20, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
    "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39,
    "exit": 60, "uname": 63, "getcwd": 79, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99,
    "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111,
    "getgroups": 115, "getresuid": 118, "getresgid": 120, "sigaltstack": 131, "gettid": 186, "time": 201,
    "epoll_create": 213, "set_tid_address": 218, "restart_syscall": 219, "exit_group": 231,
    "epoll_wait": 232, "epoll_ctl": 233, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "epoll_pwait": 281,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "getrandom": 318, "rseq": 334, "close_range": 436,
    "epoll_pwait2": 441,
}  # fmt: skip

# Return values of a seccomp filter.
ALLOW, KILL, TRAP, ERRNO = 0x7FFF0000, 0x80000000, 0x00030000, 0x00050000
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38


class Test(NamedTuple):
    """A condition: half of a 64-bit argument, masked with `mask`, is one of `values`. `high` selects the high half."""

    argument: int
    values: Sequence[int]
    mask: int = 0xFFFFFFFF
    high: bool = False


class CallRule(NamedTuple):
    """A system call with conditions. The filter returns `yes` if there are tests and all of them hold, else `no`."""

    number: int
    tests: Sequence[Test] = ()
    yes: int = ALLOW
    no: int = EPERM


_OWN = Test(0, [0])  # process id 0, which means the calling process
_NULL = [Test(2, [0]), Test(2, [0], high=True)]
_CLOCK = Test(0, [0], mask=0xFFFFFFF0)  # ids of system clocks; clocks of processes have larger ids
# The clone flags with which glibc starts a thread. With other flags, clone would make a process or a namespace.
_THREAD = Test(0, [0x3D0F00], mask=0xFFFFFFFF & ~0x400000)
RULES = {
    "clone": CallRule(56, [_THREAD]),
    "clone3": CallRule(435, no=ENOSYS),  # a filter cannot read the flags in memory; ENOSYS makes glibc use clone
    # Some releases of glibc implement fstat with this call, which could also resolve a path. So the filter traps the
    # call; see `answer_fstat`.
    "newfstatat": CallRule(262, [Test(3, [0x1000], mask=0x1000)], yes=TRAP),
    "ioctl": CallRule(16, [Test(1, [0x5401, 0x5413, 0x541B, 0x5451])]),  # TCGETS, TIOCGWINSZ, FIONREAD, FIOCLEX
    "fcntl": CallRule(72, [Test(1, [0, 1, 2, 3, 4, 1030])]),  # F_DUPFD, flags; not F_SETOWN, which can send signals
    # Operations for locks and conditions of threads, without priority inheritance, which has had many kernel bugs.
    "futex": CallRule(202, [Test(1, [0, 1, 3, 4, 5, 9, 10], mask=0xFFFFFE7F)]),
    "prlimit64": CallRule(302, [_OWN, *_NULL]),
    "prctl": CallRule(157, [Test(0, [15, 16])]),  # PR_SET_NAME and PR_GET_NAME
    "getpgid": CallRule(121, [_OWN]),
    "getsid": CallRule(124, [_OWN]),
    "sched_getaffinity": CallRule(204, [_OWN]),
    "clock_gettime": CallRule(228, [_CLOCK]),
    "clock_getres": CallRule(229, [_CLOCK]),
    "clock_nanosleep": CallRule(230, [_CLOCK]),
}  # fmt: skip

X32 = 0x40000000  # the first number of the x32 ABI
_X86_64 = 0xC000003E
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


class Instruction(NamedTuple):
    code: int
    yes: int  # instructions to skip if a comparison holds
    no: int
    value: int


def _do(code: int, value: int, yes: int = 0, no: int = 0) -> Instruction:
    return Instruction(code, yes, no, value)


def _rule(rule: CallRule) -> list[Instruction]:
    """Compile a rule. The block ends with the instructions that return `yes` and `no`. A failed test jumps to the last
    instruction, which returns `no`."""
    if not rule.tests:
        return [_do(_RETURN, rule.no)]
    block = [_do(_RETURN, rule.yes), _do(_RETURN, rule.no)]
    for test in reversed(rule.tests):
        last = len(test.values) - 1
        block = [
            _do(_LOAD, _ARGUMENTS + 8 * test.argument + 4 * test.high),
            _do(_AND, test.mask),
            *(_do(_EQUAL, value, yes=last - i) for i, value in enumerate(test.values[:-1])),
            _do(_EQUAL, test.values[-1], no=len(block) - 1),
            *block,
        ]
    return block


def _search(blocks: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Compile a binary search over call numbers. A block handles all numbers from its own number up to, but not
    including, the number of the next block."""
    if len(blocks) == 1:
        return blocks[0][1]
    middle = len(blocks) // 2
    low, high = _search(blocks[:middle]), _search(blocks[middle:])
    return [_do(_AT_LEAST, blocks[middle][0], yes=len(low)), *low, *high]


def program() -> list[Instruction]:
    """Compile the whole filter: check the architecture, then find the block of the call number."""
    calls = {number: [_do(_RETURN, ALLOW)] for number in ALLOWED.values()}
    calls.update((rule.number, _rule(rule)) for rule in RULES.values())
    calls[X32] = [_do(_RETURN, KILL)]
    # Numbers between two listed calls return EPERM.
    gaps = {number + 1 for number in calls if number != X32} | {0}
    calls.update((number, [_do(_RETURN, EPERM)]) for number in gaps - set(calls))
    blocks: list[tuple[int, list[Instruction]]] = []
    for number, block in sorted(calls.items()):
        if not blocks or blocks[-1][1] != block:
            blocks.append((number, block))
    head = [_do(_LOAD, _ARCHITECTURE), _do(_EQUAL, _X86_64, yes=1), _do(_RETURN, KILL), _do(_LOAD, _NUMBER)]
    return head + _search(blocks)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class Filter:
    """A compiled filter in the kernel's format."""

    def __init__(self, instructions: Sequence[Instruction]):
        self._bytes = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
        self._program = _Program(len(instructions), self._bytes)
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def install(self) -> None:
        """Install the filter for this thread and for all threads and processes that it starts. It cannot be removed."""
        calls = (
            (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(self._program), 0, 0),
        )
        for call in calls:
            checked(self._prctl(*call), f"prctl({call[0]})")


# void handler(int, siginfo_t *, ucontext_t *context): context->rax = fstat(context->rdi, context->rdx)
_ANSWER_FSTAT = bytes.fromhex(
    "4989d0"  # mov r8, rdx
    "498b7868"  # mov rdi, [r8+0x68]
    "498bb088000000"  # mov rsi, [r8+0x88]
    "b805000000"  # mov eax, 5
    "0f05"  # syscall
    "49898090000000"  # mov [r8+0x90], rax
    "c3"  # ret
)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SA_SIGINFO = 4
_kept: list[object] = []


def answer_fstat() -> None:
    """Install a handler that answers newfstatat(fd, path, ..., AT_EMPTY_PATH) as fstat(fd), and ignores the path.

    Some releases of glibc implement fstat with newfstatat. A filter sees only the address of the path, and with an
    absolute path the call would reveal whether a file exists, its size and its owner.
    """
    # The mapping is private, because a program could change the code of a shared mapping for the next program.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    code = mmap.mmap(-1, mmap.PAGESIZE, flags, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_ANSWER_FSTAT)
    anchor = ctypes.c_char.from_buffer(code)
    _kept.extend((code, anchor))
    action = _Action(ctypes.addressof(anchor), (ctypes.c_byte * 128)(), _SA_SIGINFO, None)
    libc = ctypes.CDLL(None, use_errno=True)
    checked(libc.sigaction(signal.SIGSYS, ctypes.byref(action), None), "sigaction")
