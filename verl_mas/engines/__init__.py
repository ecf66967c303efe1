"""Inference engines as policies see them. A folder here that verl should know is named in ENGINES.

verl keeps two lists of engines: replicas (the servers, seen from the trainer) and adapters (what an actor worker
calls to wake them and to send weights). Each engine's module registers with both.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

# `stock` first: what it wraps, the others may replace.
ENGINES = ("stock", "transformers", "vllm_cpu")


def register_replicas(replica: ModuleType) -> None:
    for name in ENGINES:
        import_module(f"{__name__}.{name}").register_replica(replica)


def register_adapters(base: ModuleType) -> None:
    for name in ENGINES:
        import_module(f"{__name__}.{name}").register_adapter(base)
