"""The size of a model's attention heads, which decides whether an engine's kernels can serve it."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from verl_mas.errors import ConfigError


def head_size(model: str) -> int | None:
    """From the model's `config.json`; None where there is none, or the heads have no one size (latent attention)."""
    settings = Path(model).expanduser() / "config.json"
    if not settings.is_file():
        return None
    config = json.loads(settings.read_text())
    config = config.get("text_config") or config
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if config.get("kv_lora_rank") or not heads or not hidden:
        return None
    size: int = config.get("head_dim") or hidden // heads
    return size


def require_head_size(model: str, sizes: Collection[int], engine: str, fix: str) -> None:
    size = head_size(model)
    if size is not None and size not in sizes:
        raise ConfigError(
            f"{model} has attention heads of size {size}",
            rule=f"{engine} knows the sizes {', '.join(map(str, sizes))}",
            fix=fix,
        )
