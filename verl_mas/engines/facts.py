"""Facts about engines, and their registration with verl. Engines come from verl-mas, installed packages and
mas.plugins."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from omegaconf import DictConfig, open_dict

from verl_mas.config.registry import Registry
from verl_mas.engines.contract import Contract
from verl_mas.errors import ConfigError
from verl_mas.verl_.registries import set_adapter

PORTS_PER_POLICY = 500
HIGHEST_PORT = 65535 - 10000  # SGLang 0.5.12 takes a second port, 10000 above the first


@dataclass(frozen=True)
class EngineMemory:
    """How an engine uses the memory of GPU and host. Engines without these facts are estimated with the defaults."""

    # True: `rollout.gpu_memory_utilization` is a share of the memory that is free at the start, and limits only weights
    # and KV cache. False: it is a share of the whole GPU, and limits all memory of the engine.
    of_free: bool = False
    # It always has a copy of its weights in host memory. False: only if it must keep its weights while it sleeps.
    host_copy: bool = False
    keeps_base: bool = False  # asleep, it keeps the weights to which it adds LoRA adapters
    holds_context: bool = True  # it starts only if its KV cache can hold a request of the maximal context length


@dataclass(frozen=True)
class EngineFacts:
    """An engine that `actor_rollout_ref.rollout.name` can name."""

    package: str | None = None  # the package that must be installed; None: unknown
    install: str | None = None  # the command that installs it by an extra of ours; None: there is no such extra
    contract: Contract | None = None  # the versions that verl-mas was compared with
    gpu_fraction: bool = False  # at its start it reserves `rollout.gpu_memory_utilization` of the GPU
    memory: EngineMemory | None = None  # None: unknown
    # It starts only if `rollout.max_num_batched_tokens` is at least the number of sequences and, without chunked
    # prefill, at least the length of the longest sequence.
    batch_limit: bool = False
    # If Ray does not hide other GPUs from processes, verl starts every such engine on the first GPUs of the node.
    numbers_gpus: bool = False
    # The option of `rollout.engine_kwargs` that sets the bytes of its KV cache on a GPU. With this option the engine
    # does not measure the free memory at its start. Empty: there is no such option.
    cache_option: str = ""
    # Mixed into the server class of a team. It adds `pause` and `unpause`, which free the GPU but keep the weights. The
    # engine's own sleep drops the weights.
    server_mixin: type[object] | None = None
    sender_mixin: type[object] | None = None  # mixed into verl's `ServerAdapter` in a team's training workers
    base_port: int | None = None  # first port that it tries; each policy gets a range of its own
    # Defaults of `rollout.engine_kwargs` for an engine that shares its GPU with another policy's engine.
    beside_others: Mapping[str, object] = field(default_factory=dict)
    stock_adapter: str | None = None  # verl's module with the engine's `ServerAdapter`, if `engines.stock` wraps it
    # Returns the names of sampling settings that a request may have; None: unknown.
    sampling: Callable[[], frozenset[str]] | None = None
    one_process: bool = False  # a replica cannot be spread over several workers
    highest_rank: int | None = None  # highest rank of a LoRA adapter on top of the base weights; None: unknown
    takes_adapters: bool = True  # it serves LoRA adapters on top of the base weights; else the trainer must merge them
    # It serves several adapters on one base at once; each request names its adapter (`mas.policies.<name>.adapter_of`).
    many_adapters: bool = False
    # Its `generate` takes `drawn`: how many of the prompt's last tokens it sampled for this reply before an abort. It
    # then continues the reply's random numbers, and still finds a stop string that began before the abort.
    resumes: bool = False
    # Raises ConfigError if `rollout.engine_kwargs` has a value that the engine does not take.
    check_options: Callable[[Mapping[str, Mapping[str, object]]], object] | None = None
    many: bool = True  # a run can have several policies on it
    # Without a tokenizer (`rollout.skip_tokenizer_init`) it cannot serve requests with a stop string or a minimum
    # length.
    needs_tokenizer: bool = False
    # Returns the fix if an engine with these `engine_kwargs` does not take `thinking_token_budget`; empty if it does.
    # None: unknown.
    thinking_fix: Callable[[Mapping[str, object]], str] | None = None
    # Part of a processor's class name. For such processors verl sends one token per image, and the engine expands it.
    # Empty: verl sends all tokens of an image.
    image_processor: str = ""
    # Registers the engine's servers in verl.workers.rollout.replica; None: verl has them already.
    register_replica: Callable[[ModuleType], None] | None = None
    # Registers, in verl.workers.rollout.base, the class that actor workers call; None: verl has it already.
    register_adapter: Callable[[ModuleType], None] | None = None
    # Raises ConfigError if the engine cannot run on a device.
    check_ready: Callable[[str | None], None] | None = None
    # Returns the name of the kernels that nvcc compiles when the engine starts; empty if none. Arguments:
    # `actor_rollout_ref.rollout` and the GPU's compute capability. None: unknown.
    compiles: Callable[[DictConfig, tuple[int, int]], str] | None = None
    # Raises ConfigError if the engine cannot serve the model at a path on a device, with its `engine_kwargs`.
    check_model: Callable[[str, str, Mapping[str, object]], None] | None = None

    def lacks(self, feature: str) -> str:
        """The reason why the installed version lacks a feature; empty if it has it, or if nothing is known."""
        return self.contract.lacks.get(feature, "") if self.contract else ""


ENGINES: Registry[EngineFacts] = Registry("engine", package="verl_mas.engines.kinds", group="verl_mas.engines")
# verl's modules with a list of engines that `fill` has filled. The key is the name of the field of EngineFacts whose
# functions add engines to the list.
_filled: dict[str, ModuleType] = {}


def register_engine(name: str, *, replica: str, adapter: str, facts: EngineFacts | None = None) -> None:
    """Register an engine with verl by the full names of two classes, which are imported when verl asks for them.

    `replica` names a subclass of `RolloutReplica`, which starts the servers; `adapter` names a subclass of
    `BaseRollout`, which actor workers call.
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
    """The facts of an engine; the defaults for an engine that only verl knows."""
    return ENGINES[name] if name in ENGINES else EngineFacts()


def contracts() -> dict[str, Contract]:
    """The contracts with engines, by the engine's name."""
    return {name: contract for name in ENGINES if (contract := ENGINES[name].contract)}


def set_options(view: DictConfig, index: int, shared: bool) -> None:
    """Set the engine options that a policy needs next to other engines, in its view. The user's values are kept.

    `index` is the policy's index among those served here; `shared`: whether another policy's engine is on its GPUs.
    """
    rollout = view.actor_rollout_ref.rollout
    facts = facts_of(rollout.name)
    options: dict[str, object] = dict(facts.beside_others) if shared else {}
    if facts.base_port is not None:
        # Policies start in parallel, so their engines must not look for free ports in the same range.
        ranges = (HIGHEST_PORT - facts.base_port) // PORTS_PER_POLICY + 1
        options["port"] = facts.base_port + PORTS_PER_POLICY * (index % ranges)
    if options:
        with open_dict(view):
            rollout.engine_kwargs[rollout.name] = {**options, **(rollout.engine_kwargs.get(rollout.name) or {})}


def head_size(model: str) -> int | None:
    """Read the size of attention heads from the model's `config.json`; None without the file, or if heads have no
    single size (latent attention)."""
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
