"""The process from which Ray's workers are forked, and the steps by which a fork becomes a worker; see
`ray_workers`."""

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

from verl_mas.util import as_main, worker_folder
from verl_mas.util.fork_server import die_with_parent, unsafe_state

# Modules that the workers of sessions, of rewards, of training and of engines import.
MODULES = (
    *("pydantic.v1", "torch.distributed.checkpoint", "verl.experimental.reward_loop.reward_manager"),
    *("verl_mas.rollout.manager", "verl_mas.trainer.trainer", "verl_mas.engines.transformers.server"),
)


def serve(listener: socket.socket) -> list[int]:
    """Fork a process for each worker that `hand_over` sends. Returns only in the fork, with the worker's
    descriptors."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = os.getpid()
    while True:
        descriptors: list[int] = []
        # Ignore an error with one worker, because an error that ended this process would end all workers.
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
            # Send the reply before the fork. If `hand_over` has ended, sending fails, and then no worker must start.
            if len(descriptors) == 4 and connection.send(b"1") and not os.fork():
                break
        for descriptor in descriptors:
            os.close(descriptor)
    listener.close()
    die_with_parent(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    return descriptors


def import_modules() -> None:
    # Replace Ray's generator of ids, because all forks of a process that has used it would generate the same ids.
    actors = importlib.import_module("ray.actor")
    drawn = actors.ActorClassID
    vars(actors)["ActorClassID"] = SimpleNamespace(from_random=lambda: drawn(os.urandom(drawn.size())))
    for name in MODULES:
        importlib.import_module(name)
    # To find the class of a model, verl imports the configurations of all models that read images; import them here.
    importlib.import_module("verl.utils.model").get_hf_auto_model_class(SimpleNamespace(architectures=["CausalLM"]))
    gc.collect()
    # Freeze all objects, because the garbage collector of a fork would write to them, and each write makes the fork
    # copy their memory.
    gc.freeze()


def become(worker: int, *streams: int) -> None:
    """Become a worker of Ray. `worker`: the descriptor of a file with the worker's command, environment and folder.
    `streams`: the descriptors of its standard streams."""
    import numpy as np
    import torch

    command, environment, folder = json.loads(Path(f"/proc/self/fd/{worker}").read_bytes())
    os.close(worker)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    worker_folder.enter()
    # Ray read variables of the environment when it was imported, so make Ray read them again.
    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    np.random.seed()
    # Remove options of the driver's Python, which may come before the script.
    argv = [part for part in command if part not in ("-s", "-S")]
    as_main.finish(as_main.run(compile(Path(argv[0]).read_bytes(), argv[0], "exec"), argv[0], argv))


if __name__ == "__main__":
    die_with_parent(os.getppid())
    # Ray's workers need the limit of open files that Ray sets in `ray.init`. This process starts earlier, so set the
    # limit here, from where the workers inherit it.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    import_modules()
    if problem := unsafe_state():
        sys.exit(f"each worker of Ray imports verl for itself, which takes longer: {problem}")
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
