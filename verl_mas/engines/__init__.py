"""Inference engines as policies see them: a module or folder each, found by being here.

verl keeps two lists of engines: replicas (the servers, seen from the trainer) and adapters (what an actor worker
calls to wake them and to send weights). The functions here are the hooks that `verl_mas.plugin` names.
"""

from __future__ import annotations

from types import ModuleType

from verl_mas.engines.facts import known_engines


def register_replicas(replica: ModuleType) -> None:
    engines = known_engines()
    for name in engines:
        if register := engines[name].register_replica:
            register(replica)


def register_adapters(base: ModuleType) -> None:
    engines = known_engines()
    for name in engines:
        if register := engines[name].register_adapter:
            register(base)
