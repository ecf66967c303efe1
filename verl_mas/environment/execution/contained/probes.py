"""Programs that try forbidden actions, which the sandbox must refuse. They are run before a team starts and by
`verl-mas doctor`, because a sandbox is trusted only after a test on this machine."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.environment.execution.executor import SETTING, Executor, Limits, Result, Status
from verl_mas.errors import ConfigError

LIMITS = Limits(cpu_s=1.0, memory_mb=128)
BRIEF = Limits(cpu_s=0.1, memory_mb=128)
HELD = "held\n"
# Only `error` counts as a refusal. A probe that gets through does no harm: for example, it sends signal 0, or forks
# once.
REFUSED = """
import os
try:
    {attack}
except {error}:
    print("held")
else:
    print("got through")
"""
SYSTEM_CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def system_call(*arguments):
    if libc.syscall(*map(ctypes.c_long, arguments)) == -1: raise OSError(ctypes.get_errno(), "refused")
"""
# mov eax, 0x40000000 + fork; syscall; ret
X32_FORK = """
import ctypes, mmap, os
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b839000040" "0f05" "c3"))
got = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
if got == 0: os._exit(0)
print("held" if got < 0 else "got through")
"""
RAISE_A_LIMIT = """
import resource
refused = 0
for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
    try: resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError): refused += 1
print("held" if refused == 2 else "got through")
"""
# The sandbox itself sets these variables.
ENVIRONMENT = """
import os
own = {"PYTHONHASHSEED", "MALLOC_ARENA_MAX", "TZ", "LC_ALL", "LC_CTYPE"}
print("held" if set(os.environ) <= own else "got through")
"""
DESCRIPTORS = """
import os
def is_open(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
print("got through" if any(map(is_open, range(3, 1024))) else "held")
"""


@dataclass(frozen=True)
class SandboxProbe:
    """A program that tries a forbidden action, which the sandbox must refuse. `killed`: the sandbox may also kill the
    program for the attempt. `endless`: the time limit must end the program."""

    name: str
    program: str
    killed: bool = False
    endless: bool = False

    def held(self, result: Result) -> bool:
        if self.endless:
            return result.status is Status.TIMED_OUT
        return result.stdout == HELD or (self.killed and result.status is Status.KILLED)


def refused(name: str, attack: str, prepare: str = "", error: str = "OSError") -> SandboxProbe:
    return SandboxProbe(name, prepare + REFUSED.format(attack=attack, error=error))


PROBES = (
    refused("read a file", 'open("/etc/passwd").read()'),
    refused("list a folder", 'os.listdir("/")'),
    refused("write a file", 'os.close(os.open("/tmp", os.O_TMPFILE | os.O_WRONLY))'),
    refused("open a socket", "import socket; socket.socket().close()"),
    refused("start a process", "os.fork() or os._exit(0)"),
    refused("start another program", 'os.execv("/bin/true", ["true"])'),
    refused("send a signal", "os.kill(os.getppid(), 0)"),
    # PTRACE_SEIZE
    refused("trace a process", "system_call(101, 0x4206, os.getppid(), 0, 0)", SYSTEM_CALL),
    SandboxProbe("call the kernel by the numbers of x32", X32_FORK, killed=True),
    SandboxProbe("raise a limit", RAISE_A_LIMIT),
    SandboxProbe("read the environment", ENVIRONMENT),
    SandboxProbe("use a descriptor of others", DESCRIPTORS),
    refused("take more memory than allowed", "[bytes(16 << 20) for _ in range(64)]", error="MemoryError"),
    SandboxProbe("compute longer than allowed", "while True: pass", endless=True),
)


async def got_through(executor: Executor) -> list[str]:
    """List the probes that were not refused, each with its result."""
    results = await asyncio.gather(
        *(executor.execute(probe.program, limits=BRIEF if probe.endless else LIMITS) for probe in PROBES)
    )
    return [
        f"{probe.name} ({result.error or result.stdout.strip() or 'no output'})"
        for probe, result in zip(PROBES, results, strict=True)
        if not probe.held(result)
    ]


def not_contained(escapes: Sequence[str]) -> ConfigError:
    """Make the error for a machine on which probes got through."""
    rule = f"before a run, {len(PROBES)} programs try what no program may do; each must be refused"
    fix = f"report it with the output of `verl-mas doctor`; until then {SETTING}.executor=sandbox_fusion "
    fix += f"{SETTING}.url=http://... sends programs to a service"
    return ConfigError(f"{SETTING}.executor=contained: programs can {', '.join(escapes)}", rule=rule, fix=fix)
