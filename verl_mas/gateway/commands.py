"""Runs programs that are commands, one process per session. For a Python file, this process is a fork of a server that
has already imported the packages of the file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from verl_mas.errors import FaultKind, ProgramLost, SessionFault, WorkflowError
from verl_mas.gateway import forked, launch
from verl_mas.gateway.host import environment
from verl_mas.gateway.runner import MOST_OUTCOME, MOST_PRINTED
from verl_mas.run_folder.records import plain
from verl_mas.util.forks import Fork, ForkServer, Refused, Restarted, ServerLost, end_of
from verl_mas.util.threads import in_thread
from verl_mas.workflow.codecs import JsonObject

TERM_S = 5.0  # seconds between SIGTERM and SIGKILL
LOOK_S = 0.2  # interval at which the worker checks whether a command has ended
MOST_VARIABLE = 100_000
# Layout of SCM_CREDENTIALS: ids of the process, user and group that sent a message.
CREDENTIALS = struct.Struct("3i")
FORKED = f"{forked.__name__}:Programs"
# Thread limits of linear algebra libraries. Without these limits, the libraries start threads on import, and a process
# with threads is not forked.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SAID = "%s: every session is a new interpreter, which imports everything again, as it cannot be forked: %s"
logger = logging.getLogger(__name__)


# The fork servers of this process by command, and the commands whose process cannot be forked.
SERVERS: dict[Command, Restarted] = {}
ALONE: set[Command] = set()
LOCK = threading.Lock()


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the variables of the run's environment that it gets."""

    argv: tuple[str, ...]
    pass_env: tuple[str, ...] = ()
    import_once: bool = True
    preload: tuple[str, ...] = ()

    async def play(self, task: JsonObject, variables: Mapping[str, str]) -> JsonObject:
        """Run the command in a new process and return its outcome, one JSON object that the command writes on the
        descriptor $VERL_MAS_OUTCOME_FD. The command gets the task on stdin and in $VERL_MAS_TASK. When the command
        ends, all processes of its group are ended, too."""
        name, text = self.argv[0], json.dumps(task, default=plain)
        # Linux refuses longer variables, so a long task is only on stdin.
        small = {"VERL_MAS_TASK": text} if len(text) < MOST_VARIABLE else {}
        env = {**environment(self.pass_env), **variables, "VERL_MAS_OUTCOME_FD": str(launch.OUTCOME), **small}
        server = await self._server(variables)
        ours, theirs = socket.socketpair()
        with _file(text) as given, tempfile.TemporaryFile() as printed:
            outcome = Outcome(ours, printed)
            with theirs, _file(json.dumps([self.argv, env, os.getcwd()])) as session:
                fork = server.fork([file.fileno() for file in (session, given, printed, theirs)])
            try:
                status = await in_thread(partial(outcome.take, fork))
            finally:
                threading.Thread(target=fork.end, args=(TERM_S,), daemon=True).start()
            if outcome.excess:
                raise SessionFault(FaultKind.WORKFLOW, f"{name} was ended: {outcome.excess}")
            if status:
                says = end_of(printed)
                _check_imports(server, says)
                raise SessionFault(FaultKind.WORKFLOW, f"{name} ended with status {status}\n{says}")
            written = outcome.read(name)
            if self in ALONE:
                written["info"] = {**(written.get("info") or {}), "imported_again": 1.0}
            return written

    @property
    def file(self) -> str | None:
        """The absolute path of FILE.py in a command `python FILE.py ...`; None for other commands."""
        if not self.import_once or len(self.argv) < 2 or not re.fullmatch(r"python[\d.]*", Path(self.argv[0]).name):
            return None
        return os.path.abspath(self.argv[1]) if self.argv[1].endswith(".py") and os.path.isfile(self.argv[1]) else None

    async def _server(self, variables: Mapping[str, str]) -> ForkServer:
        """Return the fork server that has imported the packages of the program. If the command is not a Python file, or
        if the imports make a fork unsafe, return the fork server that has imported nothing."""
        if self.file and self not in ALONE:
            marks = {name: f"http://{'-'.join(forked.MARK)}/{name}" for name in variables}
            env = {**ONE_THREAD, **environment(self.pass_env), **marks}
            try:
                return await _greeted(self, (self.file, self.preload), self.argv[:1], env)
            except (Refused, ServerLost) as error:
                if error.args[0] == "preload":
                    raise ProgramLost(f"mas.workflow.args.preload cannot be imported:\n{error.args[1]}") from None
                with LOCK:
                    if self not in ALONE:
                        logger.warning(SAID, " ".join(self.argv), error.args[-1])
                    ALONE.add(self)
        return await _greeted(Command(()), (None, ()), (sys.executable, "-I", "-S"), environment())


async def _greeted(
    command: Command, settings: tuple[str | None, Sequence[str]], python: Sequence[str], env: Mapping[str, str]
) -> ForkServer:
    with LOCK:
        start = partial(ForkServer, FORKED, settings, python=python, env=env)
        server = SERVERS.setdefault(command, Restarted(start)).usable()
    await asyncio.wrap_future(server.greeting)
    return server


@contextlib.contextmanager
def _file(text: str) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file


def _check_imports(server: ForkServer, says: str) -> None:
    """Raise ProgramLost if the program ended with the error of an import that also failed in the fork server, because
    every session would end in this way."""
    for line, failure in server.greeting.result().items():
        if says.rstrip().endswith(line):
            raise ProgramLost(f"the program cannot be imported:\n{failure}")


class Outcome:
    """Reads the outcome that a command writes on its descriptor. The kernel reports the sender of each message, so that
    messages of child processes, such as model-written programs, are ignored."""

    def __init__(self, receives: socket.socket, printed: IO[bytes]):
        receives.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        receives.settimeout(LOOK_S)
        self._receives, self._printed = receives, printed
        self._written, self._author, self._others = bytearray(), 0, 0
        self.excess = ""

    def take(self, fork: Fork) -> int:
        """Read messages until the command has ended, and return its exit status."""
        with self._receives:
            while not fork.ended.done() and not self.excess:
                self._receive()
                if os.fstat(self._printed.fileno()).st_size > MOST_PRINTED:
                    self.excess = f"it printed more than {MOST_PRINTED:,} bytes"
            fork.end(0)
            self._receives.settimeout(0)
            while self._receive():
                pass
        return fork.status()

    def read(self, name: str) -> JsonObject:
        if self._others and not self._written:
            value = f"a process that {name} started wrote the outcome"
            rule = "the command itself writes it: what programs of a model write there is not taken"
            raise WorkflowError(value, rule=rule, fix="start it by `exec`, or print it there with the shell's own echo")
        return _read_outcome(bytes(self._written), name)

    def _receive(self) -> bool:
        """Read a message, and return whether there may be more."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            message, about, _, _ = self._receives.recvmsg(1 << 16, socket.CMSG_SPACE(CREDENTIALS.size))
            if not message:  # all writers have closed their end
                time.sleep(LOOK_S if self._receives.gettimeout() else 0)
                return False
            author, _, _ = CREDENTIALS.unpack(about[0][2][: CREDENTIALS.size])
            self._author = self._author or author  # `launch.become` sends the first message
            if author == self._author:
                self._written += message.lstrip() if not self._written else message
            else:
                self._others += 1
            if len(self._written) > MOST_OUTCOME:
                self.excess = f"its outcome has more than {MOST_OUTCOME:,} bytes"
            return not self.excess
        return False


def _read_outcome(written: bytes, name: str) -> JsonObject:
    if not written.strip():
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(written), dict):
            return found
    value = f"the outcome of {name} is {written[:80]!r}"
    rule = "it is one JSON object on the descriptor $VERL_MAS_OUTCOME_FD"
    raise WorkflowError(value, rule=rule, fix='write {"reward": 1.0} or {"answer": "..."}')
