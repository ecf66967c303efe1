"""Inference engines as policies see them: folders here, installed packages, and files of mas.plugins.

verl keeps two lists of engines: replicas (the servers, seen from the trainer) and adapters (what an actor worker
calls to wake them and to send weights). Each engine's module registers with both.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from verl_mas.engines.added import load_installed


def register_replicas(replica: ModuleType) -> None:
    for engine in _shipped():
        engine.register_replica(replica)
    load_installed()


def register_adapters(base: ModuleType) -> None:
    for engine in _shipped():
        engine.register_adapter(base)
    load_installed()


def _shipped() -> Iterator[ModuleType]:
    """`stock` first: what it wraps, the others may replace."""
    yield import_module(f"{__name__}.stock")
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            yield import_module(f"{__name__}.{module.name}")
