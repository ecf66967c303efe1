"""Ray's workers as forks of one process that has imported what all of them import.

A run has about ten worker processes. Each would import verl, torch and transformers, which takes 6 s of a core and
400 MB; a fork takes milliseconds and shares the memory. Ray starts each worker by the runtime environment's
`py_executable`: `hand_over`, which sends the worker's command to the driver, which passes it on to the fork server. A
worker that cannot be forked imports for itself.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import sys
import tempfile
import threading
from pathlib import Path

from omegaconf import DictConfig, open_dict

from verl_mas.config import cluster
from verl_mas.util.forks import ForkServer, Refused, ServerLost

logger = logging.getLogger(__name__)
HAND_OVER = Path(__file__).with_name("hand_over.py")
# What the workers of sessions, of rewards, of training and of engines import.
MODULES = ("verl_mas.rollout.manager", "verl_mas.trainer.trainer", "verl_mas.engines.transformers.server")
# Threads of torch, and of pyarrow's allocator, are started while they are imported; a process with threads is not forked.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
# Ray reads them once, when it is imported. The job is the first of its cluster; workers end with the driver as they
# would with the raylet.
FIRST_JOB = {"RAY_JOB_ID": "01000000"}


def fork_workers(config: DictConfig) -> None:
    """Start the fork server, which ends with this process. A cluster that runs already, and runtime environments with
    packages of their own, have other workers."""
    runtime_env = config.ray_kwargs.ray_init.runtime_env
    if cluster.address(config) is not None or {key for key, value in runtime_env.items() if value} != {"env_vars"}:
        return
    folder = tempfile.TemporaryDirectory(prefix="verl_mas_workers_")
    address = os.path.join(folder.name, "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    environment = {**os.environ, **runtime_env.env_vars, **ONE_THREAD, **FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
    server = ForkServer("verl_mas.platform.forked_worker:RayWorkers", MODULES, env=environment)
    # Ray ends its workers before.
    server.close.atexit = False
    threading.Thread(target=_relay, args=(listener, server, folder), name="Ray's workers", daemon=True).start()
    with open_dict(runtime_env):
        runtime_env.py_executable = shlex.join([sys.executable, "-IS", str(HAND_OVER), address])


def _relay(listener: socket.socket, server: ForkServer, folder: tempfile.TemporaryDirectory[str]) -> None:
    """Pass workers on to the server, while there is one."""
    try:
        server.greeting.result()
        while True:
            with listener.accept()[0] as connection:
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
                server.fork(descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                connection.send(b"1")
    except (Refused, ServerLost, OSError) as error:
        logger.warning("Ray's workers import what they need, which takes longer: %s", error)
    finally:
        listener.close()
        folder.cleanup()
