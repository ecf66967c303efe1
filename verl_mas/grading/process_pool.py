"""Calls of one pure function in processes of their own, each call bounded in time and memory.

`signal`-based time-outs do not work in threads and cannot stop C code, and a fresh interpreter costs seconds
where the function needs sympy. So one nursery process imports and warms the function once, and forks children
from that state in milliseconds; a child that hangs is killed, one that crashes is replaced, and either way the
call gets an answer.
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
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from verl_mas.errors import MasError


class Fate(enum.Enum):
    """What became of a call. Only RETURNED carries a value."""

    RETURNED = "returned"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Called:
    fate: Fate
    value: Any = None
    error: str = ""


class BoundedPool:
    """`function` is "package.module:name"; its arguments and its result must be JSON values.

    `warm_up` holds the arguments of calls that the nursery makes once, so that children are born with warm caches.
    """

    def __init__(
        self,
        function: str,
        *,
        workers: int = 2,
        limit_s: float = 2.0,
        memory_mb: int = 2048,
        warm_up: Sequence[tuple[Any, ...]] = (),
    ):
        self.limit_s = limit_s
        self._nursery = _Nursery(function, memory_mb, warm_up)
        self._slots: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        for _ in range(workers):
            self._slots.put(_Slot(self._nursery))
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="bounded-pool")
        self._finalizer = weakref.finalize(self, self._nursery.stop)

    def submit(self, *args: Any) -> Future[Called]:
        return self._threads.submit(self._call, json.dumps(args).encode())

    def call(self, *args: Any) -> Called:
        return self.submit(*args).result()

    async def acall(self, *args: Any) -> Called:
        return await asyncio.wrap_future(self.submit(*args))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._finalizer()

    def _call(self, message: bytes) -> Called:
        slot = self._slots.get()
        try:
            return slot.call(message, self.limit_s)
        finally:
            self._slots.put(slot)


class _Slot:
    """One child at a time, forked when first needed and again after each loss."""

    def __init__(self, nursery: _Nursery):
        self._nursery = nursery
        self._child: tuple[int, Connection] | None = None

    def call(self, message: bytes, limit_s: float) -> Called:
        if self._child is None:
            self._child = self._nursery.fork()
        pid, pipe = self._child
        try:
            pipe.send_bytes(message)
            if pipe.poll(limit_s):
                fate, value = json.loads(pipe.recv_bytes())
                if fate == Fate.RETURNED.value:
                    return Called(Fate.RETURNED, value)
                return Called(Fate.RAISED, error=value)
        except (EOFError, ConnectionError):
            self._lose(pid, pipe)
            return Called(Fate.CRASHED, error="the process died")
        self._lose(pid, pipe)
        return Called(Fate.TIMED_OUT, error=f"no result within {limit_s:g} s")

    def _lose(self, pid: int, pipe: Connection) -> None:
        self._child = None
        pipe.close()
        self._nursery.kill(pid)


class _Nursery:
    """The process that children are forked from. Started on first use; restarted if it is lost."""

    def __init__(self, function: str, memory_mb: int, warm_up: Sequence[tuple[Any, ...]]):
        self._command = [sys.executable, "-m", __name__, function, str(memory_mb), json.dumps(list(warm_up))]
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None

    def fork(self) -> tuple[int, Connection]:
        with self._lock:
            for _ in range(2):
                control = self._control or self._start()
                ours, theirs = socket.socketpair()
                with theirs:
                    try:
                        socket.send_fds(control, [b"f"], [theirs.fileno()])
                        pid = int.from_bytes(_receive(control, 8), "little")
                    except (EOFError, ConnectionError):
                        ours.close()
                        self._discard()
                        continue
                return pid, Connection(ours.detach())
        raise MasError(f"the worker process of {self._command[3]} does not start: {' '.join(self._command)}")

    def kill(self, pid: int) -> None:
        """Asks the nursery, which alone knows whether that pid is still its child."""
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


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _resolve(function: str) -> Any:
    module, name = function.split(":")
    return getattr(importlib.import_module(module), name)


def _serve(function: Any, pipe: Connection) -> None:
    """A child's life: one call after another until the other end closes."""
    while True:
        try:
            args = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            answer = (Fate.RETURNED.value, function(*args))
        except Exception as error:  # the boundary: whatever the function raises is data for the caller
            answer = (Fate.RAISED.value, f"{type(error).__name__}: {error}"[:500])
        pipe.send_bytes(json.dumps(answer).encode())


def _raise_children(function: Any, memory_mb: int, control: socket.socket) -> None:
    children: set[int] = set()
    while True:
        order, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not order:
            return
        children -= _reaped(children)
        if order == b"k":
            pid = int.from_bytes(_receive(control, 8), "little")
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


def _reaped(children: set[int]) -> set[int]:
    return {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}


def _main() -> None:
    name, memory_mb, warm_up = sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    # Children inherit fd 0: one that hangs would keep the socket open after the nursery is gone.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    function = _resolve(name)
    for args in json.loads(warm_up):
        function(*args)
    try:
        _raise_children(function, int(memory_mb), control)
    finally:
        # The parent is gone or done: a child that hangs must not outlive it.
        os.killpg(0, signal.SIGKILL)
        time.sleep(1)


if __name__ == "__main__":
    _main()
