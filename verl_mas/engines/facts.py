"""What verl-mas knows of an engine, and its registration with verl: ours, of an installed package, of mas.plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType

from omegaconf import DictConfig, open_dict

from verl_mas.config.engine_tag import EngineTag
from verl_mas.registry import Registry

PORTS_PER_REPLICA = 100


@dataclass(frozen=True)
class EngineFacts:
    """An engine that `actor_rollout_ref.rollout.name` can name."""

    package: str | None = None
    """What must be installed; None: unknown."""

    gpu_fraction: bool = False
    """It reserves `rollout.gpu_memory_utilization` of the GPU when it starts."""

    pausable: type[object] | None = None
    """Mixed into the server's class so that it can free the GPU and keep its weights (`pause`, `unpause`), where the
    engine's own sleep drops them."""

    base_port: int | None = None
    """The engine looks for free ports from here on; each policy then gets a range of its own."""

    stock_adapter: str | None = None
    """The module of verl that has its `ServerAdapter`, where `engines.stock` wraps that."""

    sampling: Callable[[], frozenset[str]] | None = None
    """The names of the sampling settings that a request may have; None: unknown."""

    one_process: bool = False
    """A replica cannot be spread over several workers."""

    takes_adapters: bool = True
    """It serves LoRA adapters beside the base weights; False: the trainer must merge them."""

    check_options: Callable[[Mapping[str, Mapping[str, object]]], object] | None = None
    """Raises ConfigError where `rollout.engine_kwargs` has a value for the engine that it does not take."""

    register_replica: Callable[[ModuleType], None] | None = None
    """Registers the engine's servers in verl.workers.rollout.replica; None: verl has them."""

    register_adapter: Callable[[ModuleType], None] | None = None
    """Registers in verl.workers.rollout.base what an actor worker calls; None: verl has it."""

    check_ready: Callable[[str | None], None] | None = None
    """Raises ConfigError where the engine cannot run on a device."""

    check_model: Callable[[str, str], None] | None = None
    """Raises ConfigError where the engine cannot serve the model of a path on a device."""


ENGINES: Registry[EngineFacts] = Registry("engine", package="verl_mas.engines.kinds", group="verl_mas.engines")
# verl's lists of engines that were filled already, by the field that fills them.
_filled: dict[str, ModuleType] = {}


def register_engine(name: str, *, replica: str, adapter: str, facts: EngineFacts | None = None) -> None:
    """Register an engine with verl by the full names of two classes, which are imported when verl asks for them.

    `replica` is a `RolloutReplica`, the servers; `adapter` is a `BaseRollout`, what actor workers call.
    """

    def to_replicas(module: ModuleType) -> None:
        module.RolloutReplicaRegistry.register(name, partial(_load, replica))

    def to_adapters(module: ModuleType) -> None:
        set_adapter(module, name, adapter)

    made = replace(facts or EngineFacts(), register_replica=to_replicas, register_adapter=to_adapters)
    ENGINES.register(name)(made)
    for field, module in _filled.items():
        getattr(made, field)(module)


def set_adapter(base: ModuleType, engine: str, path: str) -> None:
    """verl has no function for this: its list of adapters maps (engine, mode) to the full name of a class."""
    base._ROLLOUT_REGISTRY[(engine, "async")] = path  # noqa: SLF001


def _load(path: str) -> type[object]:
    module, _, name = path.rpartition(".")
    loaded: type[object] = getattr(import_module(module), name)
    return loaded


def fill(field: str, module: ModuleType) -> None:
    """Add every engine to verl's list in `module`. `field` is `register_replica` or `register_adapter`."""
    for name in ENGINES:
        if register := getattr(ENGINES[name], field):
            register(module)
    _filled[field] = module


def facts_of(name: str) -> EngineFacts:
    """The facts of an engine; the defaults for one that only verl knows."""
    return ENGINES[name] if name in ENGINES else EngineFacts()


def assign_ports(view: DictConfig) -> None:
    """Policies start side by side, so their engines must not look for free ports in the same range."""
    rollout = view.actor_rollout_ref.rollout
    base_port = facts_of(rollout.name).base_port
    if base_port is None:
        return
    port = base_port + PORTS_PER_REPLICA * EngineTag.of(rollout).rank_offset
    with open_dict(view):
        rollout.engine_kwargs[rollout.name] = {"port": port, **(rollout.engine_kwargs.get(rollout.name) or {})}
