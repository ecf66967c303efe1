"""Inference engines of the policies, and the hooks that add engines to verl's lists.

verl keeps two lists of engines: replicas (the trainer's handles of servers) and adapters (objects through which an
actor worker wakes servers and sends weights). `verl_mas.plugin` registers the functions here as hooks.
"""

from types import ModuleType


def register_replicas(replica: ModuleType) -> None:
    from verl_mas.engines.facts import fill

    fill("register_replica", replica)


def register_adapters(base: ModuleType) -> None:
    from verl_mas.engines.facts import fill

    fill("register_adapter", base)
