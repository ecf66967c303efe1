"""Inference engines as policies see them.

verl keeps two lists of engines: replicas (the trainer's handles of servers) and adapters (objects through which an
actor worker wakes servers and sends weights). `verl_mas.plugin` registers the functions here as hooks.
"""

from __future__ import annotations

from types import ModuleType

from verl_mas.engines.facts import fill


def register_replicas(replica: ModuleType) -> None:
    fill("register_replica", replica)


def register_adapters(base: ModuleType) -> None:
    fill("register_adapter", base)
