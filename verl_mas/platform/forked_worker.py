"""The process that Ray's workers are forked from, and how a fork becomes one of them: see `ray_workers`."""

from __future__ import annotations

import gc
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from verl_mas.util.fork_server import CannotFork, Forks, die_with_parent, unsafe_state


class RayWorkers(Forks):
    greeting: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, modules: Sequence[str]):
        die_with_parent(os.getppid())
        # Forks of a process that has drawn from Ray's generator of ids would draw the same ids.
        actors = importlib.import_module("ray.actor")
        drawn = actors.ActorClassID
        vars(actors)["ActorClassID"] = SimpleNamespace(from_random=lambda: drawn(os.urandom(drawn.size())))
        for name in modules:
            importlib.import_module(name)
        # To find the class of a model, verl imports the configurations of all that read images.
        models = importlib.import_module("verl.utils.model")
        models.get_hf_auto_model_class(SimpleNamespace(architectures=["CausalLM"]))
        gc.collect()
        # A fork's collector would write to all objects, and so copy their memory.
        gc.freeze()
        if problem := unsafe_state():
            raise CannotFork(problem)

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        """`descriptors`: a file with command, environment and folder; then input, output and errors."""
        import numpy as np
        import torch
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        from verl_mas.util import as_main, worker_folder

        with open(descriptors[0], "rb") as file:
            file.seek(0)
            command, environment, folder = json.load(file)
        for number, descriptor in enumerate(descriptors[1:]):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        worker_folder.enter()
        # Ray read the variables when it was imported.
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
        np.random.seed()
        # Options of the driver's Python may come before the script.
        argv = [part for part in command if part not in ("-s", "-S")]
        code = compile(Path(argv[0]).read_bytes(), argv[0], "exec")
        as_main.finish(as_main.run(code, argv[0], argv))
