"""Functions that list or add entries of verl's registries, where verl itself has no function for this."""

from collections.abc import Callable, Iterable
from types import ModuleType


def replicas(module: ModuleType) -> dict[str, Callable[[], type[object]]]:
    """Loaders of the replica classes, by engine. `module`: verl.workers.rollout.replica."""
    found: dict[str, Callable[[], type[object]]] = module.RolloutReplicaRegistry._registry  # noqa: SLF001
    return found


def set_adapter(base: ModuleType, engine: str, path: str) -> None:
    """Register the full name of an engine's adapter class. `base`: verl.workers.rollout.base."""
    base._ROLLOUT_REGISTRY[(engine, "async")] = path  # noqa: SLF001


def tool_formats() -> list[str]:
    """Formats in which models write tool calls."""
    from verl.experimental.agent_loop.tool_parser import ToolParser

    return list(ToolParser._registry)  # noqa: SLF001


def losses() -> Iterable[str]:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    return list(POLICY_LOSS_REGISTRY)


def loggers() -> Iterable[str]:
    from verl.utils.tracking import Tracking

    return list(Tracking.supported_backend)


def devices() -> Iterable[str]:
    from verl.plugin.platform.platform_manager import PlatformRegistry

    return ["cuda", "npu", "cpu", *PlatformRegistry.registered_names()]
