"""A Python that starts with torch and transformers imported. A short run is ten processes that do little else.

`WarmPython` makes an executable to use in place of `python`. A program of verl's, a Ray worker and `-c` are forked from
a template process that has imported these libraries; any other program is started as usual. The template holds neither
Ray nor verl nor verl_mas: each process imports them itself, in its own environment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARIES = ("torch", "tensordict", "pandas", "transformers", "datasets", "peft", "aiohttp", "fastapi", "hydra")
# Python and torch read these when they start: processes that differ in one have different templates.
AT_START = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
LARGEST_REQUEST = 1 << 20


class WarmPython:
    """A context with an `executable`. No process that it started outlives it."""

    def __enter__(self) -> WarmPython:
        # A socket's path may be no longer than about a hundred characters: no folder of pytest's.
        self._folder = Path(tempfile.mkdtemp(prefix="verl-mas-warm-"))
        self.executable = self._folder / "python"
        address = str(self._folder / "socket")
        client = f"import sys; sys.path.insert(0, {str(HERE)!r}); import warm_client"
        self.executable.write_text(
            f"#!{sys.executable} -IS\n{client}\nwarm_client.main({address!r}, {sys.executable!r})\n"
        )
        self.executable.chmod(0o755)
        command = [sys.executable, __file__, address]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdout and self._server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()
        shutil.rmtree(self._folder)


def serve(address: str) -> None:
    """Passes each request to the template for its environment, until stdin is closed."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    print("ready", flush=True)  # noqa: T201
    templates: dict[tuple[str | None, ...], Template] = {}
    events = selectors.DefaultSelector()
    events.register(listening, selectors.EVENT_READ)
    events.register(sys.stdin, selectors.EVENT_READ)
    while all(key.fileobj is listening for key, _ in events.select()):
        client, _ = listening.accept()
        message, streams, _, _ = socket.recv_fds(client, LARGEST_REQUEST, 3)
        environment = json.loads(message)["environment"]
        key = tuple(environment.get(name) for name in AT_START)
        if key not in templates:
            templates[key] = Template({name: value for name, value in environment.items() if name != "PYTHONPATH"})
        templates[key].hand_over(message, [*streams, client.detach()])
    for template in templates.values():
        template.close()


class Template:
    """The server's end of a process that has imported what runs import."""

    def __init__(self, environment: dict[str, str]):
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-u", __file__, "template", str(other.fileno())]
        subprocess.Popen(command, env=environment, cwd="/", stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        other.close()

    def hand_over(self, message: bytes, descriptors: list[int]) -> None:
        # Where the template has ended, closing the descriptors tells the client.
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(self._socket, [message], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def close(self) -> None:
        """Ends it, and the processes that it still has."""
        self._socket.close()


class Forks:
    """The processes of a template: forked on request, killed when their client is."""

    def __init__(self, requests: socket.socket):
        self._requests = requests
        self._clients: dict[int, socket.socket] = {}
        self._events = selectors.DefaultSelector()
        self._events.register(requests, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any]:
        """Returns in each forked process, with the program that it runs; ends with the server."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj is self._requests:
                    if request := self._fork():
                        return request
                elif key.data not in self._clients:
                    # The process ended in this same round.
                    continue
                elif isinstance(key.fileobj, socket.socket):
                    self._events.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
                else:
                    self._ended(key.data, key.fd)

    def _fork(self) -> dict[str, Any]:
        message, descriptors, _, _ = socket.recv_fds(self._requests, LARGEST_REQUEST, 4)
        if not message:
            for process in self._clients:
                os.kill(process, signal.SIGKILL)
            sys.exit()
        process = os.fork()
        if not process:
            # By their owners: one that is collected later would close a file that has its number by then.
            self._events.close()
            for connection in (self._requests, *self._clients.values()):
                connection.close()
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
            os.closerange(3, max(descriptors) + 1)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors[:3]:
            os.close(descriptor)
        client = self._clients[process] = socket.socket(fileno=descriptors[3])
        client.send(str(process).encode())
        for source in (client, os.pidfd_open(process)):
            self._events.register(source, selectors.EVENT_READ, process)
        return {}

    def _ended(self, process: int, descriptor: int) -> None:
        self._events.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(process, 0)
        client = self._clients.pop(process)
        # A client that was killed is unregistered already.
        if client in self._events.get_map():
            self._events.unregister(client)
            with contextlib.suppress(BrokenPipeError):
                client.send(str(status).encode())
        client.close()


def import_libraries() -> None:
    # Python puts the folder of this file here.
    sys.path.pop(0)
    for name in LIBRARIES:
        importlib.import_module(name)
    # A fork keeps one thread. The thread of Arrow's allocator is the exception: the allocator restarts it.
    names = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    others = [name for name in names if name != "jemalloc_bg_thd"]
    assert len(others) == 1, f"threads {others}"
    # Otherwise the collector writes to the pages that the processes share.
    gc.collect()
    gc.freeze()


def become(executable: str, argv: list[str], environment: dict[str, str], folder: str) -> None:
    """Run a program as the interpreter does."""
    import numpy

    # A fork seeds the generator of the standard library again, but not that of numpy.
    numpy.random.seed()
    os.setpgid(0, 0)
    # A Ray cluster that this process starts has warm workers, too.
    sys.executable = executable
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.orig_argv = [executable, *argv]
    if argv[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    elif argv[0] == "-m":
        sys.path.insert(0, folder)
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(argv[0]))
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "template":
        import_libraries()
        become(**Forks(socket.socket(fileno=int(sys.argv[2]))).serve())
    else:
        serve(sys.argv[1])
