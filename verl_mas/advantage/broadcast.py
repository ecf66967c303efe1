"""From one advantage per row to one per trained token."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def to_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    """Each row's advantage where its response mask is 1, else 0: [N, T] float32, or jagged as the mask is.

    Only the result is allocated: no other tensor of its size.
    """
    if mask.is_nested:
        return _to_jagged(advantages, mask)
    out = torch.empty(mask.shape, dtype=torch.float32, device=mask.device).copy_(mask)
    return out.mul_(advantages.to(out).unsqueeze(1))


def _to_jagged(advantages: Tensor, mask: Tensor) -> Tensor:
    offsets: Tensor = mask.offsets()  # type: ignore[attr-defined]  # nested tensors have it
    per_token = advantages.to(mask.device).repeat_interleave(offsets.diff())
    return torch.nested.nested_tensor_from_jagged(to_tokens(per_token, mask.values().unsqueeze(1)).squeeze(1), offsets)


def trained_tokens(mask: Tensor) -> Tensor:
    """How many tokens of each row are trained [N], of a dense [N, T] or a jagged mask."""
    return mask.sum(-1)
