"""Facts about inference engines, and their registration with verl. An engine is defined by verl-mas, by an installed
package, or by a file in `mas.plugins`."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from omegaconf import DictConfig, open_dict
from packaging.version import Version

from verl_mas.config.registry import Registry
from verl_mas.errors import ConfigError
from verl_mas.util import installed_version
from verl_mas.verl_.registries import set_adapter

PORTS_PER_POLICY = 500
HIGHEST_PORT = 65535 - 10000  # SGLang 0.5.12 also uses the port that is 10000 above its first port


@dataclass(frozen=True)
class Contract:
    """Versions of an engine that verl-mas was compared with, and the features that an installed version lacks.

    `scripts/engine_names` lists the names in the engines' code that verl-mas uses, such as classes and parameters. A
    nightly test searches the wheels of these versions for the names. The test reads the source files and does not
    import them.
    """

    package: str
    tested: tuple[str, str]  # the version that verl pins, and the newest version that was compared
    needs: Mapping[str, str] = field(default_factory=dict)  # feature -> the first version that supports it
    # Classes whose fields verl reads with `dataclasses.fields`. If one of them is not a dataclass, verl cannot start
    # the engine.
    dataclasses: Sequence[str] = ()

    @property
    def untested(self) -> str | None:
        """The installed version if it is older or newer than the compared versions, else None."""
        installed = installed_version(self.package)
        oldest, newest = map(Version, self.tested)
        return installed if installed and not oldest <= Version(Version(installed).public) <= newest else None

    @property
    def unstartable(self) -> str:
        """The reason why verl cannot start the installed version; empty if no reason is known."""
        others = [path for path in self.dataclasses if (found := defined(path)) and not is_dataclass(found)]
        return f"verl 0.9.1 reads the fields of {others[0]}, and there it is not a dataclass" if others else ""

    @property
    def standing(self) -> str:
        """A text that says how the installed version relates to the compared versions."""
        if self.unstartable:
            return f"not usable: {self.unstartable}"
        if self.untested:
            return f"not compared, as {self.tested[0]} to {self.tested[1]} are"
        pinned = Version(installed_version(self.package) or self.tested[0]).public == self.tested[0]
        return "the version that verl pins" if pinned else "newer than verl pins, compared by names"

    @property
    def lacks(self) -> dict[str, str]:
        """The features that the installed engine lacks, each with the reason. If no engine is installed, the version
        that verl pins counts."""
        version = installed_version(self.package) or self.tested[0]
        why = f"{self.package} has what it needs from {{}} on, and this is {version} (docs/start/gpu-quickstart.md)"
        return {name: why.format(since) for name, since in self.needs.items() if Version(version) < Version(since)}


@dataclass(frozen=True)
class EngineMemory:
    """Facts about an engine's use of GPU memory and host memory. For an engine without these facts, the plan uses the
    defaults."""

    # Meaning of `rollout.gpu_memory_utilization`. True: a share of the memory that is free when the engine starts; it
    # limits the weights and the KV cache. False: a share of the whole GPU; it limits all memory of the engine.
    of_free: bool = False
    # Whether the engine always has a copy of its weights in host memory. If False, it has a copy only if it must keep
    # its weights while it sleeps.
    host_copy: bool = False
    # Whether a sleeping engine keeps the base weights to which it adds LoRA adapters.
    keeps_base: bool = False
    # Whether the engine starts only if its KV cache can hold a request of the maximum context length.
    holds_context: bool = True


@dataclass(frozen=True)
class EngineFacts:
    """Facts about an engine that can be the value of `actor_rollout_ref.rollout.name`."""

    # The Python package that must be installed. None: unknown.
    package: str | None = None
    # The shell command that installs the engine as an extra of verl-mas. None: there is no such extra.
    install: str | None = None
    # The versions of the engine that were compared with the names that verl-mas uses. None: no version was compared.
    contract: Contract | None = None
    # Whether the engine reserves the share `rollout.gpu_memory_utilization` of a GPU when it starts.
    gpu_fraction: bool = False
    # How the engine uses memory. None: unknown.
    memory: EngineMemory | None = None
    # Whether the engine requires that `rollout.max_num_batched_tokens` is at least the number of sequences and, without
    # chunked prefill, at least the length of the longest sequence.
    batch_limit: bool = False
    # Whether verl starts every engine of this kind on the first GPUs of its node, if Ray does not hide the other GPUs
    # from the process.
    numbers_gpus: bool = False
    # The option of `rollout.engine_kwargs` that sets the size of the KV cache per GPU in bytes. With this option, the
    # engine does not measure the free memory when it starts. Empty: there is no such option.
    cache_option: str = ""
    # A mixin for the server class of a team, with the methods `pause` and `unpause`. `pause` frees GPU memory without
    # losing the weights, which the engine's own sleep would drop.
    server_mixin: type[object] | None = None
    # A mixin for verl's `ServerAdapter` in the training workers of a team.
    sender_mixin: type[object] | None = None
    # The first port that the engine tries. Each policy gets its own range of ports. None: no ranges are needed.
    base_port: int | None = None
    # Defaults of `rollout.engine_kwargs` for an engine that shares its GPU with the engine of another policy.
    beside_others: Mapping[str, object] = field(default_factory=dict)
    # verl's module with the engine's `ServerAdapter`, for an engine that `engines.stock` wraps.
    stock_adapter: str | None = None
    # Returns the names of the sampling settings that a request may have. None: unknown.
    sampling: Callable[[], frozenset[str]] | None = None
    # Whether a replica must be a single worker process.
    one_process: bool = False
    # The highest rank of a LoRA adapter that the engine serves on top of the base weights. None: unknown.
    highest_rank: int | None = None
    # Whether the engine serves LoRA adapters on top of the base weights. If False, the trainer must merge them.
    takes_adapters: bool = True
    # Whether the engine serves several adapters of one base at once. Each request then names its adapter
    # (`mas.policies.<name>.adapter_of`).
    many_adapters: bool = False
    # Whether the engine can continue a reply that an abort interrupted. Its `generate` then has the parameter `drawn`:
    # the number of tokens at the end of the prompt that belong to the reply. The engine continues with the reply's next
    # random numbers, and finds a stop string that began before the abort.
    resumes: bool = False
    # Raises ConfigError for a value in `rollout.engine_kwargs` that the engine does not accept.
    check_options: Callable[[Mapping[str, Mapping[str, object]]], object] | None = None
    # Whether a run can have several policies on this engine.
    many: bool = True
    # Whether the engine needs its tokenizer for requests with a stop string or a minimum length. Without a tokenizer
    # (`rollout.skip_tokenizer_init`), such requests are refused.
    needs_tokenizer: bool = False
    # Takes the engine's `engine_kwargs`. Returns what to change so that the engine accepts the sampling setting
    # `thinking_token_budget`; empty if it accepts the setting already. None: unknown.
    thinking_fix: Callable[[Mapping[str, object]], str] | None = None
    # Part of the class name of a processor. For such a processor verl sends one token per image, and the engine
    # replaces it by all tokens of the image. Empty: verl always sends all tokens.
    image_processor: str = ""
    # Adds the engine's replica class to verl.workers.rollout.replica. None: verl has it already.
    register_replica: Callable[[ModuleType], None] | None = None
    # Adds the class that training workers call to verl.workers.rollout.base. None: verl has it already.
    register_adapter: Callable[[ModuleType], None] | None = None
    # Takes the device. Raises ConfigError if the engine cannot run on it.
    check_ready: Callable[[str | None], None] | None = None
    # Takes `actor_rollout_ref.rollout` and the GPU's compute capability. Returns the name of the kernels that the
    # engine compiles with nvcc when it starts; empty if it compiles none. None: unknown.
    compiles: Callable[[DictConfig, tuple[int, int]], str] | None = None
    # Takes the path of a model, the device and the engine's `engine_kwargs`. Raises ConfigError if the engine cannot
    # serve the model.
    check_model: Callable[[str, str, Mapping[str, object]], None] | None = None

    def lacks(self, feature: str) -> str:
        """Return why the installed version lacks a feature; empty if it has the feature, or if nothing is known."""
        return self.contract.lacks.get(feature, "") if self.contract else ""


ENGINES: Registry[EngineFacts] = Registry("engine", package="verl_mas.engines.kinds", group="verl_mas.engines")
# The modules of verl whose list of engines `_fill` has filled. The key is the field of EngineFacts with the function
# that adds an engine to that list.
_filled: dict[str, ModuleType] = {}


def register_engine(name: str, *, replica: str, adapter: str, facts: EngineFacts | None = None) -> None:
    """Register an engine with verl.

    `replica` and `adapter` are the full names of two classes, which are imported when verl asks for them: a subclass of
    `RolloutReplica`, which starts the servers, and a subclass of `BaseRollout`, which training workers call.
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
    """Import a class. With a colon, an ImportError of its module is raised as it is."""
    module, _, name = path.rpartition(".")
    loaded: type[object] = resolve_name(f"{module}:{name}")
    return loaded


def _fill(registers: str, module: ModuleType) -> None:
    """Add all engines to verl's list in `module`. `registers` is the field of EngineFacts with the function that adds
    an engine: `register_replica` or `register_adapter`."""
    for name in ENGINES:
        if register := getattr(ENGINES[name], registers):
            register(module)
    _filled[registers] = module


# `verl_mas.plugin` registers these functions as hooks.
register_replicas, register_adapters = partial(_fill, "register_replica"), partial(_fill, "register_adapter")


def facts_of(name: str) -> EngineFacts:
    """Return the facts of an engine. For an engine that only verl knows, they are the defaults."""
    return ENGINES[name] if name in ENGINES else EngineFacts()


def contracts() -> dict[str, Contract]:
    """Return the contracts of all engines that have one, by the name of the engine."""
    return {name: contract for name in ENGINES if (contract := ENGINES[name].contract)}


def set_options(view: DictConfig, index: int, shared: bool) -> None:
    """Set the engine options with which a policy's engine can run next to other engines. Options that the user has set
    stay as they are.

    `view`: the policy's view of the configuration. `index`: the index of the policy among the served policies.
    `shared`: whether the engine of another policy is on the same GPUs.
    """
    rollout = view.actor_rollout_ref.rollout
    facts = facts_of(rollout.name)
    options: dict[str, object] = dict(facts.beside_others) if shared else {}
    if facts.base_port is not None:
        # Policies start in parallel, so their engines must search different ranges for free ports.
        ranges = (HIGHEST_PORT - facts.base_port) // PORTS_PER_POLICY + 1
        options["port"] = facts.base_port + PORTS_PER_POLICY * (index % ranges)
    if options:
        with open_dict(view):
            rollout.engine_kwargs[rollout.name] = {**options, **(rollout.engine_kwargs.get(rollout.name) or {})}


def require_head_size(model: str, sizes: Collection[int], engine: str, fix: str) -> None:
    """Raise ConfigError if a model's attention heads do not have one of these sizes. A model without `config.json`, or
    with heads of several sizes, as in latent attention, is accepted."""
    settings = Path(model).expanduser() / "config.json"
    if not settings.is_file():
        return
    config = json.loads(settings.read_text())
    config = config.get("text_config") or config
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if config.get("kv_lora_rank") or not heads or not hidden:
        return
    if (size := config.get("head_dim") or hidden // heads) not in sizes:
        rule = f"{engine} knows the sizes {', '.join(map(str, sizes))}"
        raise ConfigError(f"{model} has attention heads of size {size}", rule=rule, fix=fix)


def defined(path: str) -> ast.stmt | None:
    """Find the definition of `module:name` in the source of an installed engine without importing the engine. Return
    None if there is no such definition."""
    module, _, name = path.partition(":")
    top, *rest = module.split(".")
    # `find_spec` imports nothing for a top-level package, but for a submodule it would import the package.
    spec = find_spec(top)
    file = Path(((spec and spec.submodule_search_locations) or [""])[0]).joinpath(*rest).with_suffix(".py")
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return next((node for node in tree.body if name in _names(node)), None)


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return {ast.unparse(target) for target in targets} | {str(getattr(node, "name", ""))}


def is_dataclass(node: ast.stmt) -> bool:
    return any("dataclass" in ast.unparse(each) for each in getattr(node, "decorator_list", ()))
