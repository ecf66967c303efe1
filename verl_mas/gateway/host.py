"""Starts and ends the processes that run programs: hosts, which play many sessions, and commands, one per session."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO

from verl_mas.errors import FaultKind, SessionFault, WorkflowError
from verl_mas.gateway import runner
from verl_mas.run_folder.records import plain
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tool_sources import in_thread

# A session that is cancelled has so long to end; then its host is replaced.
END_S = 10.0
LAST_LINES_S = 1.0  # for what it has written, when a process has ended
GONE = "the process of the program is gone"
TERM_S = 5.0  # between SIGTERM and SIGKILL
MOST_OUTCOME, MOST_ERROR, MOST_VARIABLE = 1 << 20, 4000, 100_000
# Requests to this machine go to no proxy.
DIRECT = "127.0.0.1,localhost"
logger = logging.getLogger(__name__)


def environment() -> dict[str, str]:
    direct = {name: ",".join(filter(None, [os.environ.get(name), DIRECT])) for name in ("no_proxy", "NO_PROXY")}
    return {**os.environ, **direct}


class Host:
    """A process that plays programs, for every event loop of this one; it ends with this process."""

    def __init__(self, python: str):
        command, pipe = [python, str(Path(runner.__file__))], subprocess.PIPE
        # What programs print would drown the log of the worker.
        name = f"verl-mas-programs-{os.getpid()}-"
        self._printed = tempfile.NamedTemporaryFile(prefix=name, suffix=".log", delete=False)  # noqa: SIM115  # the host's
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._printed, env=environment(), start_new_session=True
        )
        self.pid, self._numbers, self._writing = self._process.pid, count(), threading.Lock()
        self._waiting: dict[int, Future[JsonObject]] = {}
        self._over = False
        threading.Thread(target=self._watch, name="host", daemon=True).start()
        atexit.register(self.end)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def play(self, file: str, name: str, task: JsonObject, gateway: JsonObject) -> JsonObject:
        """The outcome of the function `name` of a file."""
        number, ended = next(self._numbers), Future[JsonObject]()
        ended.set_running_or_notify_cancel()  # the end of a caller does not cancel it
        self._waiting[number] = ended
        try:
            if self._over:
                raise SessionFault(FaultKind.WORKFLOW, GONE)
            self._send({"session": number, "file": file, "name": name, "task": task, "gateway": gateway})
            return outcome_of(await asyncio.wrap_future(ended))
        finally:
            if number in self._waiting:
                self._cancel(number)

    def end(self) -> None:
        atexit.unregister(self.end)
        end_group(self.pid, wait_s=0)
        if not _end_of(self._printed):
            Path(self._printed.name).unlink(missing_ok=True)

    def _cancel(self, number: int) -> None:
        with contextlib.suppress(SessionFault):
            self._send({"session": number, "cancel": True})
        timer = threading.Timer(END_S, lambda: self.end() if number in self._waiting else None)
        timer.daemon = True
        timer.start()

    def _send(self, request: JsonObject) -> None:
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(json.dumps(request, default=plain).encode() + b"\n")
                self._process.stdin.flush()
        except OSError as error:
            raise SessionFault(FaultKind.WORKFLOW, GONE) from error

    def _watch(self) -> None:
        """Until the process ends, which ends whatever waits for it."""
        reading = threading.Thread(target=self._read, name="host reads", daemon=True)
        reading.start()
        status = self._process.wait()
        # A child that has left the group can hold the pipe open.
        reading.join(timeout=LAST_LINES_S)
        self._over = True
        error = f"the process of the program ended with status {status}, and all of its sessions with it"
        while self._waiting:
            self._waiting.popitem()[1].set_result({"error": error, "traceback": _end_of(self._printed)})

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                line = json.loads(text)
                self._waiting.pop(line["session"]).set_result(line)
            except (ValueError, TypeError, KeyError, RecursionError):
                # A program wrote into the pipe, or the process was killed in the middle of a line.
                logger.error("the process of programs wrote %r, which is no outcome; it is replaced", text[:80])
                end_group(self.pid, wait_s=0)
                return


_HOSTS: dict[str, Host] = {}


def host_of(python: str) -> Host:
    """The host of this process for an interpreter; a new one, if it is gone."""
    if python not in _HOSTS or not _HOSTS[python].alive:
        _HOSTS[python] = Host(python)
    return _HOSTS[python]


def outcome_of(line: JsonObject) -> JsonObject:
    if "error" in line:
        raise SessionFault(FaultKind.WORKFLOW, f"{line['error']}\n{line.get('traceback', '')}".rstrip())
    outcome: JsonObject = line["outcome"]
    return outcome


async def command(argv: Sequence[str], task: JsonObject, variables: Mapping[str, str]) -> JsonObject:
    """The outcome of a process of its own: one JSON object on the descriptor $VERL_MAS_OUTCOME_FD. Its task is on stdin
    and in $VERL_MAS_TASK. When it ends, all processes of its group do."""
    text = json.dumps(task, default=plain)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as outcome, tempfile.TemporaryFile() as printed:
        given.write(text.encode())
        given.seek(0)
        # Text and programs of models reach what is printed and named files, and no descriptor of another process.
        channel = {"VERL_MAS_OUTCOME_FD": str(outcome.fileno())}
        # The system refuses longer variables.
        small = {"VERL_MAS_TASK": text} if len(text) < MOST_VARIABLE else {}
        env, passed = {**environment(), **variables, **channel, **small}, [outcome.fileno()]
        start = partial(subprocess.Popen, argv, env=env, pass_fds=passed, start_new_session=True)
        process = start(stdin=given, stdout=printed, stderr=printed)
        try:
            status = await in_thread(process.wait)
        finally:
            threading.Thread(target=end_group, args=(process.pid,), daemon=True).start()
        if status:
            raise SessionFault(FaultKind.WORKFLOW, f"{argv[0]} ended with status {status}\n{_end_of(printed)}")
        outcome.seek(0)
        return _read_outcome(outcome.read(MOST_OUTCOME), argv[0])


def _end_of(printed: IO[bytes]) -> str:
    size = os.fstat(printed.fileno()).st_size
    return os.pread(printed.fileno(), MOST_ERROR, max(0, size - MOST_ERROR)).decode(errors="replace")


def _read_outcome(written: bytes, name: str) -> JsonObject:
    if not written.strip():
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(written), dict):
            return found
    value = f"the outcome of {name} is {written[:80]!r}"
    rule = "it is one JSON object on the descriptor $VERL_MAS_OUTCOME_FD"
    raise WorkflowError(value, rule=rule, fix='write {"reward": 1.0} or {"answer": "..."}')


def end_group(leader: int, wait_s: float = TERM_S) -> None:
    """End a process with its children: SIGTERM, and after a while SIGKILL."""
    until = time.monotonic() + wait_s
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGTERM)
        while time.monotonic() < until:
            time.sleep(0.05)
            os.killpg(leader, 0)
        os.killpg(leader, signal.SIGKILL)
