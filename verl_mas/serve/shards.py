"""The files of a checkpoint, of which those that are damaged are named; the weights that verl's FSDP workers saved."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor, Shard

from verl_mas.errors import DiskError, MasError

# Where a policy has its model's configuration and tokenizer, and which file names the number of workers.
HUGGINGFACE, WORKERS_FILE = "huggingface", "fsdp_config.json"
Tensors = dict[str, torch.Tensor]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a file, or of the files in a folder."""
    try:
        yield
    except MasError:  # some are ValueErrors
        raise
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        cause = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise DiskError(
            f"{path} cannot be read: {cause}",
            rule="it is as training wrote it, and holds data only: nothing in it is executed",
            fix="copy it again, or export another checkpoint of the run",
        ) from error


def read_record(path: Path, *keys: str) -> dict[str, object]:
    """A JSON object that has these keys."""
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
        if lacking := [key for key in keys if key not in found]:
            raise ValueError(f"it has no {', '.join(lacking)}")
    return found


def read_weights(folder: Path, dtype: torch.dtype | None, only: str = "") -> Tensors:
    """Whole tensors by name, floating-point ones in `dtype`; `only` those with this text in their names. No code in the
    files is executed."""
    workers = read_record(folder / WORKERS_FILE, "world_size")["world_size"]
    first = _load(folder, workers, 0)
    # With replicas of the shards, the first has all of them.
    divided = [tensor for tensor in first.values() if isinstance(tensor, DTensor)]
    shards = max((tensor.device_mesh.size(-1) for tensor in divided), default=1)
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
