"""The names of adapters' tensors on their way from a training worker to an engine: one stream has several adapters."""

from __future__ import annotations

from verl_mas.errors import EngineLost

# In neither the name of a policy nor that of a weight.
_BETWEEN = "\0"


def stream_name(policy: str, key: str) -> str:
    """The name of a tensor of a policy's adapter; `key` is the one in PEFT's state dict."""
    return f"{policy}{_BETWEEN}{key}"


def split_name(name: str) -> tuple[str, str]:
    """The policy and the key that `stream_name` has put together."""
    policy, between, key = name.partition(_BETWEEN)
    if not between:
        raise EngineLost(f"weight {name} is of no adapter, and the engine takes weights of adapters only")
    return policy, key
