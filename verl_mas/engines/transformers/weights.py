"""Weights on their way from a trainer to a server, packed for Ray's object store, which returns arrays without a
copy."""

import warnings
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from verl.workers.rollout.utils import ensure_async_iterator

from verl_mas.errors import EngineLost

# Limit of the bucket size, because Ray's object store keeps the memory of the largest bucket until the end of the run.
MOST_BYTES = 64 << 20


class Packed(NamedTuple):
    """One tensor as raw bytes, because numpy has no bfloat16."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: np.ndarray


Weights: TypeAlias = Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]]


async def pack(weights: Weights, bucket_bytes: int) -> AsyncIterator[list[Packed]]:
    """Pack weights into buckets of about `bucket_bytes`, so that no second copy of a whole model is made."""
    bucket: list[Packed] = []
    size = 0
    async for name, tensor in ensure_async_iterator(weights):
        tensor = tensor.detach().to("cpu").contiguous()
        bucket.append(Packed(name, tensor.dtype, tuple(tensor.shape), tensor.view(-1).view(torch.uint8).numpy()))
        size += tensor.nbytes
        if size >= bucket_bytes:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


class WeightUpdate:
    """Copies buckets into a model in place, and checks that the buckets together contained the whole model."""

    in_place = True  # while buckets are loaded, the model is a mix of two versions

    def __init__(self, model: torch.nn.Module):
        buffers = dict(model.named_buffers(remove_duplicate=False))
        self._targets = dict(model.named_parameters(remove_duplicate=False)) | buffers
        # Tied weights are one tensor with two names, and receiving it under either name is enough.
        self._missing = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def load(self, bucket: list[Packed]) -> None:
        for packed in bucket:
            target = self._targets.get(packed.name)
            if target is None or target.shape != packed.shape:
                raise EngineLost(f"weight {packed.name} {packed.shape} does not belong to the engine's model")
            target.copy_(unpack(packed))
            self._missing.pop(target.data_ptr(), None)

    def finish(self) -> None:
        if self._missing:
            raise EngineLost(f"the trainer sent no {', '.join(sorted(self._missing.values()))}")


def unpack(packed: Packed) -> torch.Tensor:
    with warnings.catch_warnings():
        # Arrays from the object store are read-only. torch has no read-only tensors and warns, but this tensor is only
        # read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(packed.data).view(packed.dtype).view(packed.shape)
