"""Engines of installed packages and of files of mas.plugins."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from wrapt import register_post_import_hook

from verl_mas.registry import installed

# The entry points: modules that call `add_engine`.
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


def load_installed() -> None:
    for point in installed(GROUP):
        import_module(point.module)
