"""Inference engines as policies see them: folders here, installed packages, and files of mas.plugins.

verl keeps two lists of engines: replicas (the servers, seen from the trainer) and adapters (what an actor worker
calls to wake them and to send weights). Each engine registers with both.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from wrapt import register_post_import_hook

from verl_mas.registry import installed

# The entry points of other packages: modules that call `add_engine`.
GROUP = "verl_mas.engines"


def add_engine(name: str, *, replica: str, adapter: str) -> None:
    """Tell verl of an engine, when it imports its lists or at once: the full names of the class of its servers, a
    `RolloutReplica`, and of what actor workers call, a `BaseRollout`. Neither is imported before it is asked for.
    """

    def load() -> type:
        module, _, attribute = replica.rpartition(".")
        found: type = getattr(import_module(module), attribute)
        return found

    def to_replicas(module: ModuleType) -> None:
        module.RolloutReplicaRegistry.register(name, load)

    def to_adapters(module: ModuleType) -> None:
        module._ROLLOUT_REGISTRY[(name, "async")] = adapter

    register_post_import_hook(to_replicas, "verl.workers.rollout.replica")
    register_post_import_hook(to_adapters, "verl.workers.rollout.base")


def register_replicas(replica: ModuleType) -> None:
    for engine in _shipped():
        engine.register_replica(replica)
    _load_installed()


def register_adapters(base: ModuleType) -> None:
    for engine in _shipped():
        engine.register_adapter(base)
    _load_installed()


def _shipped() -> Iterator[ModuleType]:
    """`stock` first: what it wraps, the others may replace."""
    yield import_module(f"{__name__}.stock")
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            yield import_module(f"{__name__}.{module.name}")


def _load_installed() -> None:
    for point in installed(GROUP):
        import_module(point.module)
