"""Measure the time of log-probs and of their gradient, with verl's loop over the tokens and in blocks.

    python benchmarks/log_probs.py

It runs on one core of a CPU. There, with a small vocabulary, the loop spends its time on starting kernels.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import torch
from torch import Tensor
from verl.utils import torch_functional

from verl_mas.engines.platform.log_probs import REPLACED, log_probs_in_blocks

SIZES = ((16_384, 8), (16_384, 1_000), (2_048, 32_000))


def verls() -> Callable[[Tensor, Tensor], Tensor]:
    """Load verl's own function from a new copy of its module, because plugins may have changed the imported module."""
    spec = importlib.util.spec_from_file_location("torch_functional_of_verl", torch_functional.__file__)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Tensor, Tensor], Tensor] = getattr(module, REPLACED)
    return function


def seconds(function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> tuple[float, float]:
    logits = logits.clone().requires_grad_()
    start = time.perf_counter()
    found = function(logits, labels)
    middle = time.perf_counter()
    found.float().sum().backward()
    return middle - start, time.perf_counter() - middle


def main() -> None:
    torch.set_num_threads(1)
    loop = verls()
    for tokens, vocabulary in SIZES:
        for dtype in (torch.float32, torch.bfloat16):
            logits, labels = torch.randn(tokens, vocabulary, dtype=dtype), torch.randint(vocabulary, (tokens,))
            runs = {"loop": loop, "blocks": log_probs_in_blocks}
            times = {name: min(seconds(one, logits, labels) for _ in range(3)) for name, one in runs.items()}
            shown = " | ".join("{:.3f}, {:.3f}".format(*times[name]) for name in runs)
            print(f"| {tokens:,} x {vocabulary:,}, {str(dtype).removeprefix('torch.')} | {shown} |")


if __name__ == "__main__":
    main()
