"""Wraps a program in source code that any Python can run, for executors that start a process and read how it ends.

The output and the exit code of a process are not a verdict. A program can print anything and end in any way, but it
does not know what a test expects.
"""

import asyncio
import math
import signal
from collections.abc import Sequence
from dataclasses import replace

from verl_mas.environment.execution.contained import harness
from verl_mas.environment.execution.contained.sealed import NOT_COMPILED
from verl_mas.environment.execution.executor import Answer, Call, Execution, Limits, Result, Status
from verl_mas.util.loops import PerLoop

SHELL = 128  # if a signal ends a command, a shell's exit code is this number plus the number of the signal
MARK = "verl-mas answer: "

# The process sets its own limits, because code between fork and exec is not safe in a process with threads, and a
# service has no limit of the CPU time. Python ignores SIGXFSZ by default; the wrapper resets it, because otherwise a
# program could flood its output until it times out.
_TEXT = """\
def _run(limits, source):
    import os, resource, signal, sys, types
    for name, value in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), value)
        except (ValueError, OSError):
            pass
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        code = compile(source, "<program>", "exec")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        # Without the source: a line may be as long as the program.
        print(f"{{type(error).__name__}}: {{error}}"[:500], file=sys.stderr, flush=True)
        os._exit({not_compiled})
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, main.__dict__)


_run({limits!r}, {program!a})
"""


def wrapped(program: str, limits: Limits, **rlimits: int) -> str:
    """Return the text to run. `rlimits` are further limits of the process, by their names in `resource`."""
    cpu = math.ceil(limits.cpu_s)
    # At the soft limit of the CPU time, the kernel sends SIGXCPU, which `status_of` recognises. At the hard limit, the
    # kernel kills the process.
    values = {"RLIMIT_CPU": (cpu, cpu + 1), **{name: (value, value) for name, value in rlimits.items()}}
    return _TEXT.format(limits=values, program=program, not_compiled=NOT_COMPILED)


def status_of(exit_code: int, stderr: str, seconds: float, limits: Limits) -> Status:
    """Return how a wrapped program ended."""
    ended_by = -exit_code if exit_code < 0 else exit_code - SHELL
    if exit_code == 0:
        return Status.OK
    if exit_code == NOT_COMPILED:
        return Status.SYNTAX_ERROR
    if ended_by == signal.SIGXCPU or (ended_by == signal.SIGKILL and seconds > limits.cpu_s):
        return Status.TIMED_OUT
    if ended_by == signal.SIGXFSZ:
        return Status.TOO_MUCH_OUTPUT
    if 0 < ended_by < signal.NSIG:
        return Status.KILLED
    return Status.OUT_OF_MEMORY if stderr.rstrip().endswith("MemoryError") else Status.ERROR


class Wrapped:
    """Base of executors that run wrapped programs, of which at most `slots` run at the same time."""

    def __init__(self, settings: Execution):
        self.packages, self.limits = tuple(settings.packages), settings.limits
        self._slots = PerLoop(lambda: asyncio.Semaphore(settings.slots))

    async def execute(self, program: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        async with self._slots.here():
            return await self._run(program, stdin, limits)

    async def call(self, program: str, calls: Sequence[Call], limits: Limits = Limits()) -> list[Answer]:
        """Run the program and then the calls, and read one answer per call from the output."""
        wanted = [(call.function, call.args, dict(call.kwargs)) for call in calls]
        more = replace(limits, output_bytes=limits.output_bytes + harness.MAX_BYTES)
        result = await self.execute(harness.script(program, wanted, MARK), "", more)
        missing = result.error or "the program ended before this call"
        lines = harness.marked_lines(result.stdout, MARK)
        return [Answer(*pair) for pair in harness.read_answers(lines, len(calls), missing)]

    async def _run(self, program: str, stdin: str, limits: Limits) -> Result:
        """Run a program while `execute` holds a slot for it."""
        raise NotImplementedError
