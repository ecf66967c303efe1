"""What verl-mas knows of an engine, and its registration with verl: ours, of an installed package, of mas.plugins."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from omegaconf import DictConfig, open_dict

from verl_mas.errors import ConfigError
from verl_mas.registry import Registry
from verl_mas.verl_.registries import set_adapter

PORTS_PER_POLICY = 500
HIGHEST_PORT = 65535 - 10000  # SGLang 0.5.12 has a second port, 10000 above the first


@dataclass(frozen=True)
class EngineFacts:
    """An engine that `actor_rollout_ref.rollout.name` can name."""

    package: str | None = None  # what must be installed; None: unknown
    install: str | None = None  # the command that installs it, of an extra of ours; None: we have none for it
    gpu_fraction: bool = False  # it reserves `rollout.gpu_memory_utilization` of the GPU when it starts
    # The option of `rollout.engine_kwargs` with the bytes of its KV cache on a GPU, with which it does not measure the
    # free memory when it starts. Empty: it has none.
    cache_option: str = ""
    # Mixed into the class of a team's servers. It has `pause` and `unpause`, which free the GPU and keep the weights:
    # the engine's own sleep drops them.
    server_mixin: type[object] | None = None
    sender_mixin: type[object] | None = None  # mixed into verl's `ServerAdapter` of a team's training workers
    base_port: int | None = None  # it looks for free ports from here on; each policy then gets a range of its own
    # What `rollout.engine_kwargs` has by default for an engine that shares its GPU with another policy's.
    beside_others: Mapping[str, object] = field(default_factory=dict)
    stock_adapter: str | None = None  # verl's module with its `ServerAdapter`, where `engines.stock` wraps that
    # The names of the sampling settings that a request may have; None: unknown.
    sampling: Callable[[], frozenset[str]] | None = None
    one_process: bool = False  # a replica cannot be spread over several workers
    highest_rank: int | None = None  # of a LoRA adapter that it serves beside the base weights; None: unknown
    takes_adapters: bool = True  # it serves LoRA adapters beside the base weights; False: the trainer must merge them
    # It serves several adapters on one base at once: a request names its own (`mas.policies.<name>.adapter_of`).
    many_adapters: bool = False
    # Its `generate` takes `drawn`: how many of the prompt's last tokens it has sampled for this reply, before it was
    # aborted. It then continues the reply: its random draws, and a stop string that has begun.
    resumes: bool = False
    # Raises ConfigError where `rollout.engine_kwargs` has a value for the engine that it does not take.
    check_options: Callable[[Mapping[str, Mapping[str, object]]], object] | None = None
    many: bool = True  # a run can have several policies on it
    # Without a tokenizer (`rollout.skip_tokenizer_init`) it answers no request with a stop text or a least length.
    needs_tokenizer: bool = False
    # What an engine with these `engine_kwargs` lacks to take `thinking_token_budget`, as a fix; empty if it takes it.
    # None: unknown.
    thinking_fix: Callable[[Mapping[str, object]], str] | None = None
    # It writes out the tokens of an image from one, which verl leaves of them in the prompts of processors with this in
    # the name of their class alone. Empty: it takes them written out.
    image_processor: str = ""
    # Registers the engine's servers in verl.workers.rollout.replica; None: verl has them.
    register_replica: Callable[[ModuleType], None] | None = None
    # Registers in verl.workers.rollout.base what an actor worker calls; None: verl has it.
    register_adapter: Callable[[ModuleType], None] | None = None
    # Raises ConfigError where the engine cannot run on a device.
    check_ready: Callable[[str | None], None] | None = None
    # What of it nvcc compiles when it starts, by `actor_rollout_ref.rollout` and the GPU's compute capability; empty if
    # nothing. None: unknown.
    compiles: Callable[[DictConfig, tuple[int, int]], str] | None = None
    # Raises ConfigError where the engine cannot serve the model of a path on a device, with its `engine_kwargs`.
    check_model: Callable[[str, str, Mapping[str, object]], None] | None = None


ENGINES: Registry[EngineFacts] = Registry("engine", package="verl_mas.engines.kinds", group="verl_mas.engines")
# verl's lists of engines that were filled already, by the field that fills them.
_filled: dict[str, ModuleType] = {}


def register_engine(name: str, *, replica: str, adapter: str, facts: EngineFacts | None = None) -> None:
    """Register an engine with verl by the full names of two classes, which are imported when verl asks for them.

    `replica` is a `RolloutReplica`, the servers; `adapter` is a `BaseRollout`, what actor workers call.
    """
    registered = replace(
        facts or EngineFacts(),
        register_replica=lambda module: module.RolloutReplicaRegistry.register(name, partial(load_class, replica)),
        register_adapter=lambda module: set_adapter(module, name, adapter),
    )
    ENGINES.register(name)(registered)
    for registers, module in _filled.items():
        getattr(registered, registers)(module)


def load_class(path: str) -> type[object]:
    module, _, name = path.rpartition(".")
    loaded: type[object] = getattr(import_module(module), name)
    return loaded


def fill(registers: str, module: ModuleType) -> None:
    """Add every engine to verl's list in `module`. `registers` is `register_replica` or `register_adapter`."""
    for name in ENGINES:
        if register := getattr(ENGINES[name], registers):
            register(module)
    _filled[registers] = module


def facts_of(name: str) -> EngineFacts:
    """The facts of an engine; the defaults for one that only verl knows."""
    return ENGINES[name] if name in ENGINES else EngineFacts()


def set_options(view: DictConfig, index: int, shared: bool) -> None:
    """Write what a policy's engine needs beside others into its view; a value of the user's own stays.

    `index` is the policy's place among those served here, `shared` whether another one is on its GPUs.
    """
    rollout = view.actor_rollout_ref.rollout
    facts = facts_of(rollout.name)
    options: dict[str, object] = dict(facts.beside_others) if shared else {}
    if facts.base_port is not None:
        # Policies start side by side, so their engines must not look for free ports in the same range.
        ranges = (HIGHEST_PORT - facts.base_port) // PORTS_PER_POLICY + 1
        options["port"] = facts.base_port + PORTS_PER_POLICY * (index % ranges)
    if options:
        with open_dict(view):
            rollout.engine_kwargs[rollout.name] = {**options, **(rollout.engine_kwargs.get(rollout.name) or {})}


def head_size(model: str) -> int | None:
    """From the model's `config.json`; None where there is none, or the heads have no one size (latent attention)."""
    settings = Path(model).expanduser() / "config.json"
    if not settings.is_file():
        return None
    config = json.loads(settings.read_text())
    config = config.get("text_config") or config
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if config.get("kv_lora_rank") or not heads or not hidden:
        return None
    size: int = config.get("head_dim") or hidden // heads
    return size


def require_head_size(model: str, sizes: Collection[int], engine: str, fix: str) -> None:
    size = head_size(model)
    if size is not None and size not in sizes:
        rule = f"{engine} knows the sizes {', '.join(map(str, sizes))}"
        raise ConfigError(f"{model} has attention heads of size {size}", rule=rule, fix=fix)
