"""Starts and ends host processes. A host runs the programs of many sessions."""

import asyncio
import atexit
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from verl_mas.errors import FaultKind, SessionFault, WorkflowError
from verl_mas.gateway import runner
from verl_mas.run_folder.records import plain
from verl_mas.util.forks import end_of
from verl_mas.workflow.codecs import JsonObject

# Seconds in which a cancelled session must end. After that, its host process is killed.
END_S = 10.0
LAST_LINES_S = 1.0  # timeout for reading the last output of a process that has ended
GONE = "the process of the program is gone"
# Hosts that programs reach without a proxy.
DIRECT = "127.0.0.1,localhost"
# Variables that programs need to find their files, packages, certificates and proxies.
PASSED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|TMPDIR|LANG|LANGUAGE|LC_.*|XDG_.*|LD_LIBRARY_PATH|PYTHON.*|VIRTUAL_ENV"
    "|CONDA_PREFIX|NODE_PATH|NODE_OPTIONS|NODE_EXTRA_CA_CERTS|CUDA_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    "|(?i:https?_proxy|all_proxy)"
)
logger = logging.getLogger(__name__)


def environment(pass_env: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a program: the variables in PASSED and in `pass_env`. Other variables of the worker,
    such as the keys of remote policies, are withheld."""
    if missing := [name for name in pass_env if name not in os.environ]:
        rule = "the program gets these variables of the run's environment"
        fix = "set it where the run is started, or take it out of pass_env"
        raise WorkflowError(f"mas.workflow.args.pass_env has {missing[0]}, which is not set", rule=rule, fix=fix)
    passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name) or name in pass_env}
    direct = {name: ",".join(filter(None, [os.environ.get(name), DIRECT])) for name in ("no_proxy", "NO_PROXY")}
    return {**passed, **direct}


class Host:
    """A child process that runs programs for all event loops of this process, and that ends with this process."""

    def __init__(self, python: str, pass_env: Sequence[str] = ()):
        command, pipe = [python, str(Path(runner.__file__))], subprocess.PIPE
        # Output of programs goes to a file, because it would flood the log of the worker.
        name = f"verl-mas-programs-{os.getpid()}-"
        self._printed = tempfile.NamedTemporaryFile(prefix=name, suffix=".log", delete=False)  # noqa: SIM115  # `end` uses it
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._printed, env=environment(pass_env), start_new_session=True
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
        """Run the function `name` of a file in the host, and return its outcome."""
        number, ended = next(self._numbers), Future[JsonObject]()
        ended.set_running_or_notify_cancel()  # so that a cancelled caller does not cancel this future
        self._waiting[number] = ended
        try:
            if self._over:
                raise SessionFault(FaultKind.WORKFLOW, GONE)
            self._send({"session": number, "file": file, "name": name, "task": task, "gateway": gateway})
            line = await asyncio.wrap_future(ended)
        finally:
            if number in self._waiting:
                self._cancel(number)
        if "error" in line:
            raise SessionFault(FaultKind.WORKFLOW, f"{line['error']}\n{line.get('traceback', '')}".rstrip())
        outcome: JsonObject = line["outcome"]
        return outcome

    def end(self) -> None:
        atexit.unregister(self.end)
        end_group(self.pid)
        if not end_of(self._printed):
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
        """Wait until the host process ends, then fail all sessions that still wait for it."""
        reading = threading.Thread(target=self._read, name="host reads", daemon=True)
        reading.start()
        status = self._process.wait()
        # Use a timeout, because a child that has left the process group can hold the pipe open.
        reading.join(timeout=LAST_LINES_S)
        self._over = True
        error = f"the process of the program ended with status {status}, and all of its sessions with it"
        while self._waiting:
            self._waiting.popitem()[1].set_result({"error": error, "traceback": end_of(self._printed)})

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                line = json.loads(text)
                self._waiting.pop(line["session"]).set_result(line)
            except (ValueError, TypeError, KeyError, RecursionError):
                # A program wrote into the pipe, or the process was killed in the middle of a line.
                logger.error("the process of programs wrote %r, which is no outcome; it is replaced", text[:80])
                end_group(self.pid)
                return


_HOSTS: dict[tuple[str, ...], Host] = {}


def host_of(python: str, pass_env: Sequence[str] = ()) -> Host:
    """Return the host of this process for an interpreter and `pass_env`. A host that has ended is replaced."""
    kind = (python, *pass_env)
    if kind not in _HOSTS or not _HOSTS[kind].alive:
        _HOSTS[kind] = Host(python, pass_env)
    return _HOSTS[kind]


def end_group(leader: int) -> None:
    """Kill all processes in the process group of `leader`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
