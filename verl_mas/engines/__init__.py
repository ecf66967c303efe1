"""Inference engines as policies see them.

verl keeps two lists of engines: replicas (the servers, seen from the trainer) and adapters (what an actor worker
calls to wake them and to send weights). `verl_mas.plugin` names the functions here as hooks.
"""

from __future__ import annotations

from types import ModuleType


def register_replicas(replica: ModuleType) -> None:
    from verl_mas.engines.facts import fill

    fill("register_replica", replica)


def register_adapters(base: ModuleType) -> None:
    from verl_mas.engines.facts import fill

    fill("register_adapter", base)
