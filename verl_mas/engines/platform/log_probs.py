"""Log-probs from logits, in blocks of tokens. Without flash-attn, verl loops over single tokens in Python."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DIFF = "upstream/block-log-probs.patch"
REPLACED = "logprobs_from_logits_v2"
# Number of logits in a block, by device. Apart from the logits and their gradient, only float32 copies of a block are
# held. On a CPU, a copy fits in the caches. On a GPU, a copy has 64 MiB, so that computing a block takes longer than
# starting a kernel.
BLOCKS = {"cpu": 1 << 20, "cuda": 1 << 24}


class LogProbs(torch.autograd.Function):
    """The log-prob of one label per token. Sums are in float32, as in flash-attn's cross entropy, or in float64 if the
    logits are in float64."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        norms = torch.cat([_exact(logits[rows]).logsumexp(-1) for rows in _blocks(logits)])
        ctx.save_for_backward(logits, labels, norms)
        return logits.gather(-1, labels[:, None])[:, 0] - norms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels, norms = ctx.saved_tensors
        result = torch.empty_like(logits)
        for rows in _blocks(logits):
            of_labels = gradient[rows, None]
            block = (logits[rows] - norms[rows, None]).exp_().mul_(-of_labels)
            result[rows] = block.scatter_add_(-1, labels[rows, None], of_labels)
        return result, None


def _exact(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _blocks(logits: Tensor) -> Iterator[slice]:
    tokens, vocabulary = logits.shape
    size = max(1, BLOCKS.get(logits.device.type, BLOCKS["cuda"]) // vocabulary)
    return (slice(first, first + size) for first in range(0, tokens, size))


def log_probs_in_blocks(logits: Tensor, labels: Tensor) -> Tensor:
    flat: Tensor = LogProbs.apply(logits.flatten(0, -2), labels.flatten())
    return flat.view(labels.shape)


def patch(torch_functional: ModuleType) -> None:
    """Replace verl's loop, which runs if neither flash-attn's nor an NPU's cross entropy is installed."""
    setattr(torch_functional, REPLACED, log_probs_in_blocks)
