"""What verl-mas knows of an engine, and how verl is told of one: ours, of an installed package, of mas.plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, open_dict

from verl_mas.config.engine_tag import EngineTag
from verl_mas.registry import Registry

PORTS_PER_REPLICA = 100


@dataclass(frozen=True)
class EngineFacts:
    """An engine that `actor_rollout_ref.rollout.name` can name."""

    package: str | None = None
    """What must be installed; None: nothing that we know of."""

    gpu_fraction: bool = False
    """It takes `rollout.gpu_memory_utilization` of the GPU when it starts."""

    pausable: type[Any] | None = None
    """Mixed into the server's class so that it can leave the GPU and keep its weights (`pause`, `unpause`), where the
    engine's own sleep drops them."""

    base_port: int | None = None
    """The engine looks for free ports from here on; each policy then gets a range of its own."""

    stock_adapter: str | None = None
    """The module of verl that has its `ServerAdapter`, where `engines.stock` wraps that."""

    check_options: Callable[[Mapping[str, object]], object] | None = None
    """Raises ConfigError where `rollout.engine_kwargs` has a value for the engine that it does not take."""

    register_replica: Callable[[ModuleType], None] | None = None
    """Tells verl.workers.rollout.replica of the engine's servers; None: verl has them."""

    register_adapter: Callable[[ModuleType], None] | None = None
    """Tells verl.workers.rollout.base of what an actor worker calls; None: verl has it."""

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
        module._ROLLOUT_REGISTRY[(name, "async")] = adapter

    made = replace(facts or EngineFacts(), register_replica=to_replicas, register_adapter=to_adapters)
    ENGINES.register(name)(made)
    for field, module in _filled.items():
        getattr(made, field)(module)


def _load(path: str) -> type[Any]:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def fill(field: str, module: ModuleType) -> None:
    """verl's list in `module` with every engine's `register_replica` or `register_adapter`."""
    for name in ENGINES:
        if register := getattr(ENGINES[name], field):
            register(module)
    _filled[field] = module


def facts_of(name: str) -> EngineFacts:
    """An engine that only verl knows has the facts of EngineFacts' defaults."""
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
