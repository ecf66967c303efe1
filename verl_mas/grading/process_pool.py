"""Calls of one pure function in separate processes, each call bounded in time and memory.

Timeouts by `signal` work neither in threads nor in C code, and a new interpreter that imports sympy takes seconds. So
one fork server imports the function and warms its caches once, and forks workers from that state in milliseconds. A
worker that hangs is killed, one that crashes is replaced, and either way the call returns a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from verl_mas.errors import MasError

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class CallStatus(enum.Enum):
    """How a call ended. Only RETURNED has a value."""

    RETURNED = "returned"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class CallResult:
    status: CallStatus
    value: Json = None
    error: str = ""


class BoundedPool:
    """`function` is "package.module:name"; its arguments and its result must be JSON values.

    The fork server calls the function once with each of the arguments in `warm_up`, so that workers start with warm
    caches.
    """

    def __init__(
        self,
        function: str,
        *,
        workers: int = 2,
        limit_s: float = 2.0,
        memory_mb: int = 2048,
        warm_up: Sequence[tuple[Json, ...]] = (),
    ):
        self.limit_s = limit_s
        self._server = _ForkServer(function, memory_mb, warm_up)
        # Of each worker its process and the pipe to it; None: it is forked on use, at first and after each loss.
        self._workers: queue.SimpleQueue[tuple[int, Connection] | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._workers.put(None)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="bounded-pool")
        self._finalizer = weakref.finalize(self, self._server.stop)

    def submit(self, *args: Json) -> Future[CallResult]:
        return self._threads.submit(self._call, json.dumps(args).encode())

    def call(self, *args: Json) -> CallResult:
        return self.submit(*args).result()

    async def acall(self, *args: Json) -> CallResult:
        return await asyncio.wrap_future(self.submit(*args))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._finalizer()

    def _call(self, message: bytes) -> CallResult:
        worker = self._workers.get()
        try:
            pid, pipe = worker = worker or self._server.fork()
            try:
                pipe.send_bytes(message)
                if pipe.poll(self.limit_s):
                    status, value, error = json.loads(pipe.recv_bytes())
                    return CallResult(CallStatus(status), value, error)
                result = CallResult(CallStatus.TIMED_OUT, error=f"no result within {self.limit_s:g} s")
            except (EOFError, ConnectionError):
                result = CallResult(CallStatus.CRASHED, error="the process died")
            worker = None
            pipe.close()
            self._server.kill(pid)
            return result
        finally:
            self._workers.put(worker)


class _ForkServer:
    """The process that workers are forked from. Started on first use; restarted if it is lost."""

    def __init__(self, function: str, memory_mb: int, warm_up: Sequence[tuple[Json, ...]]):
        self._command = [sys.executable, "-m", __name__, function, str(memory_mb), json.dumps(list(warm_up))]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> tuple[int, Connection]:
        with self._lock:
            for _ in range(2):
                control = self._control or self._start()
                ours, theirs = socket.socketpair()
                with theirs, contextlib.suppress(ConnectionError):
                    socket.send_fds(control, [b"f"], [theirs.fileno()])
                    if len(pid := control.recv(8, socket.MSG_WAITALL)) == 8:
                        return int.from_bytes(pid, "little"), Connection(ours.detach())
                ours.close()
                self._discard()
        raise MasError(f"the worker process of {self._command[3]} does not start: {' '.join(self._command)}")

    def kill(self, pid: int) -> None:
        """Have the fork server kill it, since only the server knows whether that pid is still its child."""
        with self._lock, contextlib.suppress(ConnectionError):
            if self._control is not None:
                self._control.sendall(b"k" + pid.to_bytes(8, "little"))

    def stop(self) -> None:
        with self._lock:
            self._discard()

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self._control

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _serve(function: Callable[..., Json], pipe: Connection) -> None:
    """The loop of a worker: one call after another until the other end closes."""
    while True:
        try:
            args = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            result: Json = [CallStatus.RETURNED.value, function(*args), ""]
        except Exception as error:  # noqa: BLE001  boundary: any exception of the function is data for the caller
            result = [CallStatus.RAISED.value, None, f"{type(error).__name__}: {error}"[:500]]
        pipe.send_bytes(json.dumps(result).encode())


def _serve_forks(function: Callable[..., Json], memory_mb: int, control: socket.socket) -> None:
    children: set[int] = set()
    while True:
        order, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not order:
            return
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
        if order == b"k":
            pid = int.from_bytes(control.recv(8, socket.MSG_WAITALL), "little")
            if pid in children:
                os.kill(pid, signal.SIGKILL)
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            limit = memory_mb * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _serve(function, Connection(fds[0]))
            os._exit(0)
        os.close(fds[0])
        children.add(pid)
        control.sendall(pid.to_bytes(8, "little"))


def _main() -> None:
    name, memory_mb, warm_up = sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    # Workers inherit fd 0: one that hangs would keep the socket open after the fork server has ended.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    module, _, attribute = name.partition(":")
    function: Callable[..., Json] = getattr(importlib.import_module(module), attribute)
    for args in json.loads(warm_up):
        function(*args)
    try:
        _serve_forks(function, int(memory_mb), control)
    finally:
        # The parent has ended or closed the pool: end the workers, too, even one that hangs.
        os.killpg(0, signal.SIGKILL)
        time.sleep(1)


if __name__ == "__main__":
    _main()
