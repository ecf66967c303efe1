"""What verl uses of the sender of weights when it sends an adapter."""

import torch

update_weights = None


def _preprocess_tensor_for_update_weights(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
