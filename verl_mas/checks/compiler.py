"""CUDA's compiler, where an engine compiles kernels."""

from __future__ import annotations

import os
from shutil import which

from verl_mas.config.run import View
from verl_mas.engines.facts import facts_of

INSTALL = "apt-get install cuda-toolkit-13-0, from NVIDIA's repository"


def nvcc() -> str | None:
    """Look where FlashInfer and SGLang do."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return which(f"{home}/bin/nvcc") if home else which("nvcc") or which("/usr/local/cuda/bin/nvcc")


def compiled(view: View) -> str:
    """The kernels that the engine of a policy compiles on the GPUs of this machine; empty without any."""
    compiles = facts_of(view.engine).compiles
    if compiles is None or view.config.trainer.device != "cuda":
        return ""
    import torch

    # None with ROCm.
    if torch.version.cuda is None or not torch.cuda.is_available():
        return ""
    return compiles(view.section("rollout"), torch.cuda.get_device_capability()) or ""
