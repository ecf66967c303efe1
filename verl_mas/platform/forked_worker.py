"""The process that Ray's workers are forked from, and what a fork does to be a worker: see `ray_workers`."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_mas.util.fork_server import CannotFork, Forks, die_with_parent, unsafe_state


class RayWorkers(Forks):
    greeting: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, modules: Sequence[str]):
        die_with_parent(os.getppid())
        for name in modules:
            importlib.import_module(name)
        # For the class of a model verl imports the configurations of all models with images.
        from transformers import PretrainedConfig
        from verl.utils.model import get_hf_auto_model_class

        get_hf_auto_model_class(PretrainedConfig(architectures=["CausalLM"]))
        gc.collect()
        # A collection in a fork would write to every object, and so copy its memory.
        gc.freeze()
        if problem := unsafe_state():
            raise CannotFork(problem)

    def before_fork(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()

    def play(self, limits: Sequence[float], descriptors: Sequence[int], slot: int) -> None:
        """`descriptors`: a file with the command, the environment and the folder; then input, output and errors."""
        import numpy as np
        import torch
        from ray._raylet import AuthenticationTokenLoader, Config

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
        # Ray has read its variables when it was imported.
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
        np.random.seed()
        if threads := environment.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        # Ray puts options of the driver's Python before the script.
        argv = [part for part in command if part not in ("-s", "-S")]
        code = compile(Path(argv[0]).read_bytes(), argv[0], "exec")
        as_main.finish(as_main.run(code, argv[0], argv))
