"""A stage of the proof, its results, and the processes that it runs. It needs only the standard library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).parent
NEEDS_CUDA = "needs CUDA"
# With fewer cores per run, runs at the same time take longer than runs one after the other.
CORES_PER_RUN = 4
TAIL = 40


class Skipped(Exception):
    """A stage, or a part of a stage, that this machine cannot run. The message says why."""


@dataclass(frozen=True)
class Stage:
    number: int
    title: str
    seconds: float
    """Time limit of the stage on a GPU."""
    work: Callable[[Proof], None]
    needs_cuda: bool = False


@dataclass(frozen=True)
class Program:
    """A process to run, and the name of its log."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    may_fail: bool = False
    """If true, the exit code is recorded but not checked."""


@dataclass(frozen=True)
class Ended:
    exit_code: int | None
    """None if the process was killed at the time limit."""
    output: str
    began: float
    """Time of the start, in seconds since the epoch."""


class Proof:
    """The context of all stages: the folder, the functions that run programs, and the results of the current stage."""

    def __init__(
        self,
        folder: Path,
        lines: TextIO,
        *,
        cpu: bool,
        model: Path | None = None,
        sglang: str = sys.executable,
    ):
        self.folder, self.cpu, self.model, self.sglang = folder, cpu, model, sglang
        self.lines = lines
        self._start = time.monotonic()
        self._deadline = float("inf")
        self._stage: int | None = None
        self.failed = self.passed = 0

    def begin(self, number: int, deadline: float) -> None:
        self._stage, self._deadline = number, deadline
        self.failed = self.passed = 0

    @property
    def left(self) -> float:
        """Return the seconds until the time limit of the stage."""
        return max(self._deadline - time.monotonic(), 0.0)

    def write(self, event: str, **values: object) -> None:
        line = {"t": round(time.monotonic() - self._start, 1), "stage": self._stage, "event": event, **values}
        self.lines.write(json.dumps(line, default=str) + "\n")
        self.lines.flush()

    def check(self, what: str, holds: bool, value: object = None) -> None:
        """Record whether a claim of the stage holds, with the measured value."""
        self.passed += holds
        self.failed += not holds
        self.write("check", what=what, passed=bool(holds), value=value)

    def unless(self, reason: str | None, what: str) -> bool:
        """Return whether a check can be made. If not, record the reason."""
        if reason:
            self.write("check", what=what, passed=None, skipped=reason)
        return not reason

    def run(self, *programs: Program, all_at_once: bool = False) -> list[Ended]:
        """Run the programs, as many at the same time as the machine has cores for, or all with `all_at_once`."""
        places = len(programs) if all_at_once else (os.cpu_count() or 1) // CORES_PER_RUN
        with ThreadPoolExecutor(max(places, 1)) as threads:
            return list(threads.map(self._run, programs))

    def python(self, name: str, *arguments: str) -> Ended:
        """Run a program of this folder."""
        return self.run(Program(name, [sys.executable, str(HERE / f"{name}.py"), *arguments]))[0]

    def _run(self, program: Program) -> Ended:
        log = self.folder / f"{self._stage}-{program.name}.log"
        start, began = time.monotonic(), time.time()
        with log.open("w") as out:
            process = self.start(program, out)
            exit_code: int | None
            try:
                exit_code = process.wait(self.left)
            except subprocess.TimeoutExpired:
                exit_code = None
            finally:
                end(process)
        ended = Ended(exit_code, log.read_text(errors="replace"), began)
        tail = None if exit_code == 0 else ended.output.splitlines()[-TAIL:]
        seconds = round(time.monotonic() - start, 1)
        self.write("program", name=program.name, exit_code=exit_code, seconds=seconds, tail=tail)
        if not program.may_fail:
            self.check(f"{program.name} ends well", exit_code == 0, "out of time" if exit_code is None else exit_code)
        return ended

    def start(self, program: Program, out: TextIO) -> subprocess.Popen[bytes]:
        """Start a program in its own process group. `end` ends the whole group."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1", **({"VERL_PLATFORM": "cpu"} if self.cpu else {}), **program.env}
        return subprocess.Popen(program.command, env=env, stdout=out, stderr=out, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all processes that it started."""
    for sent, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, sent)
            process.wait(seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
