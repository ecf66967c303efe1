"""Matrix products by oneDNN: at the few rows of a decode step about twice as fast as what torch picks for float32."""

from __future__ import annotations

import torch
from torch import nn

WORTH_IT = 1 << 16
"""Smaller weights are left as they are: calling oneDNN costs more than it saves."""


class OneDnnLinear(nn.Linear):
    """`nn.Linear` on the same weights, for inference in float32 on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  torch's only name for it
        output: torch.Tensor = product(input, self.weight, self.bias, "none", [], "")
        return output


def use_onednn(model: nn.Module) -> None:
    """Turn the model's larger float32 CPU linears into oneDNN's, in place; weights stay where and as they are."""
    if not torch.backends.mkldnn.is_available():
        return
    for module in model.modules():
        if type(module) is nn.Linear and _suits(module.weight):
            module.__class__ = OneDnnLinear


def _suits(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= WORTH_IT
