"""Runs programs as plain subprocesses, with the rights of this user. It is used only if a setting names it."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

from verl_mas.environment.execution.executor import SETTING, Execution, Limits, Result, Status, register_executor
from verl_mas.environment.execution.wrapper import Wrapped, status_of, wrapped
from verl_mas.errors import ConfigError
from verl_mas.util.text import encodable

logger = logging.getLogger(__name__)

# Address space that is added to the memory limit of a program: for Python alone, and for Python with packages such as
# numpy.
PYTHON_MB, PACKAGES_MB = 64, 512
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@register_executor("unsafe_subprocess")
class UnsafeSubprocess(Wrapped):
    """Runs programs without a sandbox: a program can read, write and send whatever this user can. CPU time and memory
    are not measured."""

    def __init__(self, settings: Execution):
        super().__init__(settings)
        warn_once()

    def check(self) -> None:
        """Import each package as a program would."""
        for package in self.packages:
            code = f"import importlib; importlib.import_module({package!r})"
            done = subprocess.run([*self._python, "-c", code], env={}, capture_output=True, check=False)
            if done.returncode:
                value = f"{SETTING}.packages: {package!r} cannot be imported"
                rule = "programs import the packages of this Python"
                raise ConfigError(value, rule=rule, fix="install it, or leave it out")

    async def aclose(self) -> None:
        """Do nothing, because every process ends with its call."""

    @property
    def _python(self) -> list[str]:
        # Without -S the installed packages can be imported.
        return [sys.executable, "-I"] if self.packages else [sys.executable, "-I", "-S"]

    async def _run(self, program: str, stdin: str, limits: Limits) -> Result:
        with TemporaryDirectory(prefix="verl-mas-program-", ignore_cleanup_errors=True) as folder:
            return await self._run_in(Path(folder), program, stdin, limits)

    async def _run_in(self, folder: Path, program: str, stdin: str, limits: Limits) -> Result:
        memory = (limits.memory_mb + (PACKAGES_MB if self.packages else PYTHON_MB)) * 2**20
        rlimits = {"RLIMIT_AS": memory, "RLIMIT_FSIZE": limits.output_bytes, "RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0}
        (folder / "run.py").write_text(wrapped(program, limits, **rlimits))
        # The streams are files, because a program may ask for the size of its input, and because the kernel's limit of
        # the file size ends a flood of output. The files have no names, so that the program cannot replace them.
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(encodable(stdin).encode())
            given.seek(0)
            start = time.monotonic()
            command = [*self._python, "run.py"]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=given, stdout=out, stderr=err, cwd=folder, env=ENVIRONMENT, start_new_session=True
            )
            exit_code = await _ended(process, limits.seconds)
            seconds = time.monotonic() - start
            stdout, stderr = (_text(file, limits.output_bytes) for file in (out, err))
        status = Status.TIMED_OUT if exit_code is None else status_of(exit_code, stderr, seconds, limits)
        return Result(status, stdout, stderr, seconds, exit_code=exit_code)


async def _ended(process: asyncio.subprocess.Process, limit: float) -> int | None:
    """Wait for the process and return its exit code; None if the time limit ended it."""
    try:
        return await asyncio.wait_for(process.wait(), limit)
    except asyncio.TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _text(file: IO[bytes], limit: int) -> str:
    file.seek(0)
    return file.read(limit).decode(errors="replace")


@cache
def warn_once() -> None:
    logger.warning(
        "%s.executor=unsafe_subprocess runs programs that a model wrote with the rights of this user: they can read "
        "and delete its files, use its keys and its network. Use it only on a machine with nothing to lose.",
        SETTING,
    )
