"""A Ray cluster of two nodes on this machine, started by `ray start` before any run, as on real nodes."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LONGEST_START = 60.0
# `ray start`, whose workers are started with the executable that is its first argument.
PROGRAM = "import sys; sys.executable = sys.argv.pop(1); from ray.scripts.scripts import main; sys.exit(main())"


class RayStart:
    """A context. A process in `environment` finds the cluster by Ray's own file; no other process does.

    The nodes run in a folder of their own. Each has one counter "GPU".
    """

    def __init__(self, python: str):
        """`python` starts its workers."""
        self._python = python
        # The paths of Ray's sockets may have only about a hundred characters, so a folder of pytest would be too long.
        self._folder = Path(tempfile.mkdtemp(prefix="verl-mas-start-"))
        self.environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | {
            "RAY_TMPDIR": str(self._folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "OMP_NUM_THREADS": "1",
        }
        self.jobs = f"http://127.0.0.1:{free_port()}"
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RayStart:
        ports = ("--port=0", "--ray-client-server-port", free_port(), "--dashboard-port", self.jobs.split(":")[-1])
        self._start("--head", *ports)
        self._start("--address", (self._folder / "ray/ray_current_cluster").read_text().strip())
        return self

    @property
    def where(self) -> Path:
        """The folder in which the nodes were started."""
        return self._folder / "where"

    def _start(self, *arguments: str) -> None:
        self.where.mkdir(exist_ok=True)
        own = ("--num-cpus=32", "--num-gpus=1", "--disable-usage-stats", "--dashboard-agent-listen-port", free_port())
        command = [sys.executable, "-c", PROGRAM, self._python, "start", *arguments, *own, "--block"]
        log = self._folder / f"node_{len(self._nodes)}.log"
        with log.open("w") as out:
            node = subprocess.Popen(command, cwd=self.where, env=self.environment, stdout=out, stderr=out)
        self._nodes.append(node)
        until = time.monotonic() + LONGEST_START
        while "Ray runtime started" not in (text := log.read_text()):
            assert node.poll() is None and time.monotonic() < until, text
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        for node in reversed(self._nodes):
            node.send_signal(signal.SIGTERM)
            node.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])
