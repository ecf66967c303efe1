"""Calls of one pure function in separate processes, each call bounded in time and memory.

Timeouts by `signal` work neither in threads nor in C code, and a new interpreter that imports sympy takes seconds. So
a fork server imports the function and warms its caches once, and workers are forks of it. A worker that hangs is
killed, one that crashes is replaced, and either way the call returns a result.
"""

import importlib
import json
import os
import queue
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection

from verl_mas.errors import MasError
from verl_mas.util.fork_server import Forks
from verl_mas.util.forks import Fork, ForkServer, Restarted, ServerLost

# Results of calls that did not return: TIMED_OUT after the time limit; CRASHED if the process died or ran out of
# memory, or if the function raised an exception.
TIMED_OUT, CRASHED = "timed_out", "crashed"


class Calls(Forks):
    """Answers calls of one function. `settings`: the function as "package.module:name", the memory of a fork in MB, the
    arguments of the calls that warm up the server, and the folders in which Python finds modules."""

    def __init__(self, settings: tuple[str, int, Sequence[Sequence[str]], Sequence[str]]):
        name, memory_mb, warm_up, sys.path[:] = settings
        module, _, attribute = name.partition(":")
        self._memory, self.greeting = memory_mb * 2**20, {}
        self._function: Callable[..., str] = getattr(importlib.import_module(module), attribute)
        for args in warm_up:
            self._function(*args)

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        """Answer one call after another until the other end closes."""
        resource.setrlimit(resource.RLIMIT_AS, (self._memory, self._memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(os.devnull, "w") as nothing:
            for printed in (1, 2):
                os.dup2(nothing.fileno(), printed)
        pipe = Connection(descriptors[0])
        while True:
            try:
                args = json.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                return
            try:
                answer = self._function(*args)
            except Exception:  # noqa: BLE001  boundary: any exception of the function is data for the caller
                answer = CRASHED
            pipe.send_bytes(answer.encode())


class BoundedPool:
    """A pool for one function of strings that returns a string. `function` is "package.module:name".

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
        warm_up: Sequence[Sequence[str]] = (),
    ):
        self.limit_s = limit_s
        kind, env = f"{__name__}:Calls", {**os.environ, "OMP_NUM_THREADS": "1"}
        self._settings = (function, memory_mb, list(warm_up), sys.path)
        self._server = Restarted(partial(ForkServer, kind, self._settings, env=env))
        # Each worker, with the pipe to it. None stands for a worker that has not started or was lost, and is forked on
        # use.
        self._workers: queue.SimpleQueue[tuple[Fork, Connection] | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._workers.put(None)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="bounded-pool")

    def submit(self, *args: str | None) -> Future[str]:
        """Call the function. The result may also be TIMED_OUT or CRASHED."""
        return self._threads.submit(self._call, json.dumps(args).encode())

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._server.close()

    def _call(self, message: bytes) -> str:
        worker = self._workers.get()
        try:
            fork, pipe = worker = worker or self._fork()
            try:
                pipe.send_bytes(message)
                if pipe.poll(self.limit_s):
                    return pipe.recv_bytes().decode()
                result = TIMED_OUT
            except (EOFError, ConnectionError):
                result = CRASHED
            worker = None
            pipe.close()
            fork.signal()
            return result
        finally:
            self._workers.put(worker)

    def _fork(self) -> tuple[Fork, Connection]:
        for _ in range(2):
            try:
                server = self._server.usable()
                server.greeting.result()
                ours, theirs = socket.socketpair()
                with theirs:
                    return server.fork([theirs.fileno()]), Connection(ours.detach())
            except ServerLost as error:
                lost = error
        raise MasError(f"the worker process of {self._settings[0]} does not start: {lost}")
