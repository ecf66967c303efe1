"""CUDA's compiler, where an engine compiles kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from shutil import which

from omegaconf import DictConfig

from verl_mas.checks.verl.place import target, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError

INSTALL = "apt-get install cuda-toolkit-13-0, from NVIDIA's repository"


def nvcc() -> str | None:
    """Look where FlashInfer and SGLang do."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return which(f"{home}/bin/nvcc") if home else which("nvcc") or which("/usr/local/cuda/bin/nvcc")


def check_compiler(config: DictConfig) -> Iterator[Problem]:
    """Engines that compile kernels need nvcc. A machine without GPUs is not asked for it."""
    rollout = config.actor_rollout_ref.rollout
    compiles = facts_of(rollout.name).compiles
    if config.trainer.device != "cuda" or compiles is None or target() or nvcc():
        return
    import torch

    # None with ROCm.
    if (
        torch.version.cuda
        and torch.cuda.is_available()
        and (what := compiles(rollout, torch.cuda.get_device_capability()))
    ):
        value = f"actor_rollout_ref.rollout.name={rollout.name}, and nvcc is not installed"
        fix = f"{INSTALL}, or set CUDA_HOME to the folder that has bin/nvcc"
        yield unless_elsewhere(config, ConfigError(value, rule=f"nvcc compiles {what} when the engine starts", fix=fix))
