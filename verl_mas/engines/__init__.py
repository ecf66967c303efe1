"""Inference engines as policies see them.

verl keeps two lists of engines: replicas (the servers, seen from the trainer) and adapters (what an actor worker
calls to wake them and to send weights). The functions here are the hooks that `verl_mas.plugin` names.
"""

from __future__ import annotations

from types import ModuleType

from verl_mas.engines.facts import fill


def register_replicas(replica: ModuleType) -> None:
    fill("register_replica", replica)


def register_adapters(base: ModuleType) -> None:
    fill("register_adapter", base)
