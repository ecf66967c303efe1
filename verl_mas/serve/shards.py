"""The weights of a policy from the files that its training workers saved, verl's FSDP checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, Shard

from verl_mas.errors import DiskError
from verl_mas.serve.reading import read_record, reading

# Where a policy has its model's configuration and tokenizer, and which file names the number of workers.
HUGGINGFACE, WORKERS_FILE = "huggingface", "fsdp_config.json"
Tensors = dict[str, torch.Tensor]


def read_weights(folder: Path, dtype: torch.dtype | None, only: str = "") -> Tensors:
    """Whole tensors by name, floating-point ones in `dtype`; `only` those with this text in their names. No code in the
    files is executed."""
    workers = read_record(folder / WORKERS_FILE, "world_size")["world_size"]
    first = _load(folder, workers, 0)
    # With replicas of the shards, the first has all of them.
    shards = max((_shards(tensor) for tensor in first.values()), default=1)
    states = [first, *(_load(folder, workers, rank) for rank in range(1, shards))]
    with torch.no_grad():
        return {name: in_precision(_joined([state[name] for state in states]), dtype) for name in first if only in name}


def _load(folder: Path, workers: object, rank: int) -> Mapping[str, torch.Tensor]:
    path = folder / f"model_world_size_{workers}_rank_{rank}.pt"
    if not path.is_file():
        raise DiskError(
            f"{path} is missing",
            rule=f"each of the {workers} training workers saved a part of the policy's weights",
            fix="copy this folder of every node of the run into one",
        )
    with reading(path):
        state: Mapping[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def _shards(tensor: torch.Tensor) -> int:
    return tensor.device_mesh.size(-1) if isinstance(tensor, DTensor) else 1


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor that is not divided is the same in all files."""
    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    placement = first.placements[-1]
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    return torch.cat(local, dim=placement.dim) if isinstance(placement, Shard) else local[0]


def in_precision(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
