"""A Python that starts with the imports of runs. A short run is ten processes that do little but import.

`WarmPython` makes an executable to use in place of `python`. A program of verl's, a Ray worker and `-c` are forked from
a process that has imported the libraries; any other program is started as usual.

Ray, verl and verl_mas read their environment when they are imported; Ray's library then keeps the job of its worker.
So drivers, and the workers of one run, are each forked from a process that imported them in their environment. With
`-c` each process imports them itself.
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
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
LIBRARIES = (
    *("torch", "torch.distributed.checkpoint", "tensordict", "pandas", "datasets", "peft", "aiohttp", "fastapi"),
    *("hydra", "pydantic.v1", "transformers", "transformers.models.qwen2.modeling_qwen2"),
)
DRIVER = ("ray.dag", "verl.trainer.constants_ppo", "verl.trainer.ppo.utils", "verl_mas.checks.hydra")
WORKER = (
    *("ray.dag", "verl.trainer.ppo.v1"),
    "verl.workers.engine_workers",
    "verl_mas.trainer.modes.sync",
    "verl_mas.rollout.worker",
    "verl_mas.engines.transformers.server",
)
# Python and torch read these variables when they start, so processes with different values have different templates.
AT_START = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
# Variables that differ between drivers, or between workers of one run. No import reads them.
OF_A_PROCESS = frozenset(
    "CUDA_VISIBLE_DEVICES MASTER_ADDR MASTER_PORT MKL_NUM_THREADS PYTEST_CURRENT_TEST RANK RAY_LOCAL_WORLD_SIZE"
    " VERL_FILE_LOGGER_PATH WG_BACKEND WG_PREFIX WORLD_SIZE".split()
)
# The number of templates with verl, for drivers and for the workers of a run. Few runs overlap.
MOST_TEMPLATES = 3
# Python puts the folder of this file first.
OWN_PATH = sys.path[1:]
RETIRE = b"retire"
LARGEST_REQUEST = 1 << 20


class WarmPython:
    """A context with an `executable`. No process that it started outlives it."""

    def __enter__(self) -> WarmPython:
        # A socket's path may have only about a hundred characters, so a folder of pytest would be too long.
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
    """Pass each request to the template for its environment, until stdin is closed."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    print("ready", flush=True)  # noqa: T201
    templates = Templates()
    events = selectors.DefaultSelector()
    events.register(listening, selectors.EVENT_READ)
    events.register(sys.stdin, selectors.EVENT_READ)
    while all(key.fileobj is listening for key, _ in events.select()):
        client, _ = listening.accept()
        message, streams, _, _ = socket.recv_fds(client, LARGEST_REQUEST, 3)
        request = json.loads(message)
        hand_over(templates.of(request["argv"], request["environment"]), message, [*streams, client.detach()])


class Templates:
    """The server's sockets to the templates. When its socket is closed, a template ends its processes and itself."""

    def __init__(self) -> None:
        self._with_libraries: dict[tuple[str | None, ...], socket.socket] = {}
        self._with_verl: OrderedDict[tuple[object, ...], socket.socket] = OrderedDict()
        # A retired template ends when the last of its processes ends.
        self._retired: list[socket.socket] = []

    def of(self, argv: list[str], environment: dict[str, str]) -> socket.socket:
        libraries = self._libraries(environment)
        if not (modules := to_import(argv, environment)):
            return libraries
        kept = {name: value for name, value in environment.items() if name not in OF_A_PROCESS}
        key = (modules, *sorted(kept.items()))
        if key not in self._with_verl:
            self._with_verl[key], other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            message = json.dumps({"modules": modules, "environment": kept}).encode()
            hand_over(libraries, message, [other.detach(), os.dup(1), os.dup(2)])
        self._with_verl.move_to_end(key)
        if len(self._with_verl) > MOST_TEMPLATES:
            _, oldest = self._with_verl.popitem(last=False)
            hand_over(oldest, RETIRE, [])
            self._retired.append(oldest)
        return self._with_verl[key]

    def _libraries(self, environment: dict[str, str]) -> socket.socket:
        key = tuple(environment.get(name) for name in AT_START)
        if key not in self._with_libraries:
            self._with_libraries[key], other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            given = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
            subprocess.Popen([sys.executable, "-u", __file__, "template"], env=given, cwd="/", stdin=other.fileno())
            other.close()
        return self._with_libraries[key]


def to_import(argv: list[str], environment: dict[str, str]) -> tuple[str, ...]:
    if argv[0] == "-m":
        return DRIVER
    # A worker of a run on the CPU. Other programs may use Ray without verl.
    return WORKER if argv[0] != "-c" and "VERL_PLATFORM" in environment else ()


def hand_over(template: socket.socket, message: bytes, descriptors: list[int]) -> None:
    # If the template has ended, the client notices it because the descriptors are closed.
    with contextlib.suppress(BrokenPipeError):
        socket.send_fds(template, [message], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


class Forks:
    """The processes of a template: forked on request, killed when their client is."""

    def __init__(self) -> None:
        """Take the requests from stdin."""
        self._requests = socket.socket(fileno=os.dup(0))
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        self._retired = False
        # A template with verl has no client: it ends with the server.
        self._clients: dict[int, socket.socket | None] = {}
        self._events = selectors.DefaultSelector()
        self._events.register(self._requests, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any]:
        """Return the program to run, in each forked process. In the template itself, end with the server."""
        while self._clients or not self._retired:
            for key, _ in self._events.select():
                if key.fileobj is self._requests:
                    if request := self._take_request():
                        return request
                elif key.data not in self._clients:
                    # The process ended in this same round.
                    continue
                elif isinstance(key.fileobj, socket.socket):
                    self._events.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
                else:
                    self._ended(key.data, key.fd)
        sys.exit()

    def _take_request(self) -> dict[str, Any]:
        message, descriptors, _, _ = socket.recv_fds(self._requests, LARGEST_REQUEST, 4)
        if not message:
            for process, client in self._clients.items():
                if client:
                    os.kill(process, signal.SIGKILL)
            sys.exit()
        if message == RETIRE:
            self._retired = True
            return {}
        process = os.fork()
        if not process:
            # Close these through their objects: an object that is collected later would close a reused descriptor.
            self._events.close()
            for connection in filter(None, (self._requests, *self._clients.values())):
                connection.close()
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
            os.closerange(3, max(descriptors) + 1)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors[:3]:
            os.close(descriptor)
        self._clients[process] = None
        self._events.register(os.pidfd_open(process), selectors.EVENT_READ, process)
        for descriptor in descriptors[3:]:
            client = self._clients[process] = socket.socket(fileno=descriptor)
            client.send(str(process).encode())
            self._events.register(client, selectors.EVENT_READ, process)
        return {}

    def _ended(self, process: int, descriptor: int) -> None:
        self._events.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(process, 0)
        if not (client := self._clients.pop(process)):
            return
        # A client that was killed is unregistered already.
        if client in self._events.get_map():
            self._events.unregister(client)
            with contextlib.suppress(BrokenPipeError):
                client.send(str(status).encode())
        client.close()


def import_modules(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)
    # A fork keeps one thread. The thread of Arrow's allocator is the exception: the allocator restarts it.
    names = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    others = [name for name in names if name != "jemalloc_bg_thd"]
    assert len(others) == 1, f"threads {others}"
    # Without a freeze, the collector would write to the pages that the processes share, and so copy them.
    gc.collect()
    gc.freeze()


def import_models() -> None:
    """Import the configurations of all models, which verl reads to find the class of a model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.keys()


def import_verl(modules: Iterable[str]) -> None:
    """Import verl without drawing from Ray's generator of ids: forks of a seeded process would draw equal ids."""
    import ray.actor

    drawn = ray.ActorClassID
    vars(ray.actor)["ActorClassID"] = SimpleNamespace(from_random=lambda: drawn(os.urandom(drawn.size())))
    import_modules(modules)


def enter(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *OWN_PATH]


def become(executable: str, argv: list[str], environment: dict[str, str], folder: str) -> None:
    """Run a program as the interpreter does."""
    import numpy

    # A fork seeds the generator of the standard library again, but not that of numpy.
    numpy.random.seed()
    os.setpgid(0, 0)
    # This gives warm workers to a Ray cluster that this process starts.
    sys.executable = executable
    enter(environment)
    os.chdir(folder)
    if "verl_mas.util.worker_folder" in sys.modules:
        # The import of the plugin enters this folder, but the template has already imported it.
        sys.modules["verl_mas.util.worker_folder"].enter()
    if "verl_mas.checks.hydra" in sys.modules:
        # The templates already fork the workers.
        vars(sys.modules["verl_mas.checks.hydra"])["fork_workers"] = lambda config: None
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
        import_modules(LIBRARIES)
        import_models()
        request = Forks().serve()
        if "modules" in request:
            enter(request["environment"])
            import_verl(request["modules"])
            request = Forks().serve()
        become(**request)
    else:
        serve(sys.argv[1])
