"""The sender of weights, in the training worker."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
from sglang.srt.utils import MultiprocessingSerializer
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

NamedTensors = list[tuple[str, torch.Tensor]]


async def update_weights(
    engine: Any, params_batch: NamedTensors, device_mesh_key: str, device_mesh: DeviceMesh
) -> dict[str, object] | None:
    mesh = device_mesh[device_mesh_key]
    whole = [(name, _preprocess_tensor_for_update_weights(tensor.detach())) for name, tensor in params_batch]
    gathered: list[object] | None = [None] * mesh.size() if mesh.get_local_rank() == 0 else None
    dist.gather_object(whole, gathered, dst=mesh.mesh.tolist()[0], group=mesh.get_group())
    if gathered is None:
        return None
    request = UpdateWeightsFromTensorReqInput([MultiprocessingSerializer.serialize(part) for part in gathered])
    sent: dict[str, object] = await engine.update_weights_from_tensor(request)
    return sent


def _preprocess_tensor_for_update_weights(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
