"""verl's registries that it has no function for: to list what is registered, or to add."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


def replicas(module: ModuleType) -> dict[str, Callable[[], type[object]]]:
    """A loader of the class, by engine. `module`: verl.workers.rollout.replica."""
    found: dict[str, Callable[[], type[object]]] = module.RolloutReplicaRegistry._registry  # noqa: SLF001
    return found


def set_adapter(base: ModuleType, engine: str, path: str) -> None:
    """`base`: verl.workers.rollout.base, whose list of adapters maps (engine, mode) to the full name of a class."""
    base._ROLLOUT_REGISTRY[(engine, "async")] = path  # noqa: SLF001


def tool_formats() -> list[str]:
    """In which models write calls of tools."""
    from verl.experimental.agent_loop.tool_parser import ToolParser

    return list(ToolParser._registry)  # noqa: SLF001
