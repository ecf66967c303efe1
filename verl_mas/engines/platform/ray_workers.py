"""Starts Ray's workers as forks of one process that has already imported the modules that all workers import.

A run has about ten worker processes. Without forks, each worker would import verl, torch and transformers, which takes
7 s of CPU time and 400 MB. A fork takes milliseconds and shares the memory. Ray starts each worker with the
`py_executable` of the runtime environment. This module sets `py_executable` to `hand_over`, which asks `forked_worker`
to fork the worker. A worker that cannot be forked imports the modules itself.
"""

import atexit
import logging
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import ray
from omegaconf import DictConfig, open_dict

from verl_mas.config import cluster

logger = logging.getLogger(__name__)
# Another version of Ray may read more of a worker's environment at import, and forked workers would then not start.
TESTED_RAY = "2.60."
HAND_OVER = Path(__file__).with_name("hand_over.py")
# A process with threads cannot be forked. torch would start threads, and so would pyarrow's allocator.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def fork_workers(config: DictConfig) -> None:
    """Start the process that forks workers. It ends when this process ends. Workers are not forked in a cluster that
    runs already, or if the runtime environment sets anything besides environment variables."""
    runtime_env = config.ray_kwargs.ray_init.runtime_env
    if cluster.address(config) is not None or {key for key, value in runtime_env.items() if value} != {"env_vars"}:
        return
    if not ray.__version__.startswith(TESTED_RAY):
        logger.warning("workers of Ray %s are not forked, which was tested with %sx", ray.__version__, TESTED_RAY)
        return
    folder = tempfile.TemporaryDirectory(prefix="verl_mas_workers_", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    address = os.path.join(folder.name, "socket")
    # Ray reads both variables when it is imported. The first job of a cluster has this id, and this job is the first.
    # The driver's process id can replace the raylet's, because the raylet lives as long as the driver.
    process = {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
    # Only the started process listens at the socket. Once this process has ended, connections to the socket fail, so
    # workers start without a fork.
    with socket.create_server(address, family=socket.AF_UNIX) as listener:
        subprocess.Popen(
            [sys.executable, "-m", "verl_mas.engines.platform.forked_worker", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={**os.environ, **runtime_env.env_vars, **ONE_THREAD, **process},
            start_new_session=True,
        )
    # Turn off workers that Ray starts before it knows the runtime environment, because they are never used.
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112
    with open_dict(runtime_env):
        runtime_env.py_executable = shlex.join([sys.executable, "-IS", str(HAND_OVER), address])
