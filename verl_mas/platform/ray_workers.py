"""Ray's workers as forks of one process that has imported what all of them import.

A run has about ten worker processes. Each would import verl, torch and transformers, which takes 7 s of a core and
400 MB; a fork takes milliseconds and shares the memory. Ray starts each worker by the runtime environment's
`py_executable`: `hand_over`, which sends the worker's command to the driver, which has it forked. A worker that cannot
be forked imports for itself.
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

import ray
from omegaconf import DictConfig, open_dict

from verl_mas.config import cluster
from verl_mas.util.forks import ForkServer, Refused, ServerLost

logger = logging.getLogger(__name__)
# Another Ray may keep more of a worker's variables when it is imported, and the worker would not start.
TESTED_RAY = "2.60."
SLOWER = "each worker of Ray imports verl for itself, which takes longer"
HAND_OVER = Path(__file__).with_name("hand_over.py")
# What the workers of sessions, of rewards, of training and of engines import.
MODULES = [
    *("pydantic.v1", "torch.distributed.checkpoint", "verl.experimental.reward_loop.reward_manager"),
    *("verl_mas.rollout.manager", "verl_mas.trainer.trainer", "verl_mas.engines.transformers.server"),
]
# A process with threads is not forked: torch would start some, and the allocator of pyarrow.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def fork_workers(config: DictConfig) -> None:
    """Start the process of the forks, which ends with this one. A cluster that runs already, and runtime environments
    with packages of their own, have other workers."""
    runtime_env = config.ray_kwargs.ray_init.runtime_env
    if cluster.address(config) is not None or {key for key, value in runtime_env.items() if value} != {"env_vars"}:
        return
    if not ray.__version__.startswith(TESTED_RAY):
        logger.warning("%s: Ray %s is not tested with it", SLOWER, ray.__version__)
        return
    folder = tempfile.TemporaryDirectory(prefix="verl_mas_workers_")
    address = os.path.join(folder.name, "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    # Ray reads both when it is imported. The job is the first of its cluster; the raylet lives as long as the driver.
    process = {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
    environment = {**os.environ, **runtime_env.env_vars, **ONE_THREAD, **process}
    server = ForkServer("verl_mas.platform.forked_worker:RayWorkers", MODULES, env=environment)
    # Ray ends its workers before.
    server.close.atexit = False
    threading.Thread(target=relay, args=(listener, server, folder), name="Ray's workers", daemon=True).start()
    # Workers that Ray starts before it knows the runtime environment are never used.
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112
    with open_dict(runtime_env):
        runtime_env.py_executable = shlex.join([sys.executable, "-IS", str(HAND_OVER), address])


def relay(listener: socket.socket, server: ForkServer, folder: tempfile.TemporaryDirectory[str]) -> None:
    """Have workers forked, as long as the server is there."""
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
        logger.warning("%s: %s", SLOWER, error)
    finally:
        # Workers that wait for an answer go on by themselves.
        listener.close()
        folder.cleanup()
