"""Compare two checkpoints of a policy: `python same_weights.py FOLDER FOLDER` exits with 1 if their weights differ."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (shard,) = folder.glob("model_world_size_1_rank_*.pt")
    state = torch.load(shard, weights_only=False, map_location="cpu")
    return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in state.items()}


if __name__ == "__main__":
    first, second = (weights(Path(folder)) for folder in sys.argv[1:])
    differ = [name for name in first.keys() | second.keys() if not torch.equal(first[name], second[name])]
    sys.stdout.write(f"{len(first)} tensors, {len(differ)} differ: {differ[:5]}\n")
    sys.exit(bool(differ) or not first)
