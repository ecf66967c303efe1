"""One Ray cluster that many runs connect to, one after the other."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

# The cluster declares more CPUs and GPUs than the machine has. This works because a "GPU" is only one worker process
# on the CPU, and most of verl's actors only wait.
CPUS, GPUS = 64, 4
LONGEST_END = 60.0


class RayCluster:
    """A context with a Ray cluster, which also ends if the process that made it is killed."""

    def __init__(self, python: str):
        """`python` is the Python executable with which Ray starts the workers of the cluster."""
        self._python = python
        self._own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    def __enter__(self) -> RayCluster:
        # The paths of Ray's sockets may have only about a hundred characters, so a folder of pytest would be too long.
        self._folder = tempfile.mkdtemp(prefix="verl-mas-ray-")
        self._environment = os.environ | self._own
        command = [sys.executable, __file__, self._folder, self._python]
        self._head: subprocess.Popen[str] = subprocess.Popen(
            command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._own["RAY_ADDRESS"] = self._answer()
        return self

    def joined(self, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return the environment and the overrides with which a run joins this cluster."""
        # Workers inherit the environment of the cluster, not of the driver.
        new = {key: value for key, value in environment.items() if self._environment.get(key) != value}
        new.pop("PYTEST_CURRENT_TEST", None)
        overrides = [f"++ray_kwargs.ray_init.runtime_env.env_vars.{key}='{value}'" for key, value in new.items()]
        # Ray refuses these settings from a driver that connects to a cluster.
        overrides += ["ray_kwargs.ray_init.num_cpus=null", "ray_kwargs.ray_init.num_gpus=null"]
        return {**environment, **self._own}, overrides

    def wait_until_empty(self) -> None:
        """Wait until Ray has ended all actors of the last run. Otherwise the next run would connect to the
        TransferQueue of the last run."""
        assert self._head.stdin
        print(file=self._head.stdin, flush=True)
        left = self._answer()
        assert not left, f"actors that outlived their run: {left}"

    def _answer(self) -> str:
        assert self._head.stdout
        line = self._head.stdout.readline()
        assert line.endswith("\n"), "the cluster's head has ended"
        return line.strip()

    def __exit__(self, *_: object) -> None:
        self._head.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


def head(folder: str, python: str) -> None:
    """Print the address. For each line of stdin, wait for all actors to end, and print those that do not."""
    import ray

    # Ray prints to stdout, too. So answers go to a copy of stdout, and all other output to stderr.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.executable = python
    ray.init(num_cpus=CPUS, num_gpus=GPUS, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    print(ray.get_runtime_context().gcs_address, file=answers)
    for _ in sys.stdin:
        until = time.monotonic() + LONGEST_END
        while (left := _alive()) and time.monotonic() < until:
            time.sleep(0.05)
        print(*left, file=answers)


def _alive() -> list[str]:
    from ray._private.state import state

    actors = state.actor_table(None, None, None)
    return [actor["ActorClassName"] for actor in actors.values() if actor["State"] != "DEAD"]


if __name__ == "__main__":
    head(*sys.argv[1:])
