"""Processes of a `BoundedPool`: the fork server imports and warms up one function, and forks answer calls of it.

Like the fork server, this module needs only the standard library, in addition to the function.
"""

import importlib
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from verl_mas.util.fork_server import Forks

CRASHED = "crashed"  # the answer to a call that raised


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
