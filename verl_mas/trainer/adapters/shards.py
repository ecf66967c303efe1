"""Tensors that FSDP2 has split over the workers, to and from whole ones. All workers take part in every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from verl.utils.device import get_device_id

from verl_mas.trainer.adapters.files import OptimizerState


def whole(tensor: Tensor) -> Tensor:
    """A copy with the parts of all workers, on the device: offloaded parts are gathered there, too."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.to(get_device_id()).full_tensor()  # type: ignore[attr-defined]
    # What one worker gathers is the parameter itself.
    return tensor.clone()


def split_as(like: Tensor, given: Tensor | None) -> Tensor:
    """The first worker's tensor, split as `like` is. What the other workers give is not looked at."""
    if given is None or given.is_meta:
        given = torch.empty(like.shape)
    given = given.to(get_device_id(), like.dtype)
    return distribute_tensor(given, like.device_mesh, like.placements) if isinstance(like, DTensor) else given


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> OptimizerState:
    """What an optimiser keeps of each parameter that it has updated, whole, in host memory."""
    return {
        key: {name: _saved(value, f"{name} of {key}") for name, value in optimizer.state[parameter].items()}
        for key, parameter in parameters.items()
        if parameter in optimizer.state
    }


def set_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], given: OptimizerState | None
) -> None:
    """The first worker's `given`, as `optimizer_state` has it; the other workers give None."""
    known = _known_to_all(given)
    state = {
        number: {name: split_as(parameters[key], value) if _is_split(value) else value for name, value in own.items()}
        for number, key in enumerate(parameters)
        if (own := known.get(key)) is not None
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _saved(value: object, what: str) -> object:
    if not isinstance(value, Tensor):
        return value
    if value.dim() and not isinstance(value, DTensor):
        raise TypeError(f"optimizer state {what} is not split as its parameter is, so it cannot be saved whole")
    return whole(value).cpu()


def _is_split(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dim() > 0


def _known_to_all(given: OptimizerState | None) -> OptimizerState:
    """The first worker's; for the others without the contents of what is split."""
    outline = given and {
        key: {name: value.to("meta") if _is_split(value) else value for name, value in own.items()}
        for key, own in given.items()
    }
    box = [outline]
    torch.distributed.broadcast_object_list(box, src=0)
    known = box[0] if given is None else given
    assert known is not None
    return known
