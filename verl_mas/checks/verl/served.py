"""Whether a policy can be served: its model folder and its engine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.compiler import check_compiler
from verl_mas.checks.verl.model_files import check_model
from verl_mas.checks.verl.model_folder import is_hub_name, local_folder
from verl_mas.checks.verl.place import is_remote, missing, target, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, raised_by
from verl_mas.checks.verl.remote_code import check_remote_code
from verl_mas.config.verl_settings import ATTENTION, DEFAULT_ATTENTION, attention, is_flash
from verl_mas.engines.contract import contracts, lacking
from verl_mas.engines.contract import missing as missing_names
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.path import PACKAGE
from verl_mas.platform import DEVICE as CPU
from verl_mas.registry import closest, nearest
from verl_mas.util import installed_version
from verl_mas.verl_.registries import replicas

# Of model.override_config: what most models read.
OVERRIDDEN = (
    "attn_implementation attention_dropout max_position_embeddings model_config moe_config num_hidden_layers "
    "rope_parameters rope_scaling rope_theta sliding_window tie_word_embeddings use_sliding_window"
).split()


def check_served(config: DictConfig) -> Iterator[Problem]:
    """The model and the engine of a run without a team, or of a policy's view."""
    engine, device = config.actor_rollout_ref.rollout.name, config.trainer.device
    yield from check_engine(engine, device)
    yield from check_installed(config)
    yield from check_remote_code(config)
    yield from check_beside_model(config)
    model = list(check_model(config))
    yield from model
    facts = facts_of(engine)
    if facts.check_options:
        yield from raised_by(facts.check_options, config.actor_rollout_ref.rollout.engine_kwargs)
    if facts.check_model and not any(isinstance(problem, ConfigError) for problem in model):
        path = config.actor_rollout_ref.model.path
        options = config.actor_rollout_ref.rollout.engine_kwargs.get(engine) or {}
        yield from raised_by(facts.check_model, str(local_folder(path) or path), device, options)


def check_beside_model(config: DictConfig) -> Iterator[Problem]:
    """What verl loads beside the weights."""
    model = config.actor_rollout_ref.model
    for key in ("tokenizer_path", "hf_config_path"):
        path = model.get(key)
        if isinstance(path, str) and not (is_remote(path) or is_hub_name(path) or Path(path).expanduser().is_dir()):
            yield missing(config, f"actor_rollout_ref.model.{key}", path, "a folder that exists, or a name of the hub")
        elif isinstance(path, str) and is_hub_name(path) and local_folder(path) is None:
            reason = "not checked: no folder of this name is here, nor in the Hugging Face cache"
            yield ConfigWarning(f"actor_rollout_ref.model.{key}={path}", reason, "correct the path, or download it")
    for setting in ("model.external_lib", "rollout.checkpoint_engine.custom_backend_module"):
        modules = OmegaConf.select(config.actor_rollout_ref, setting) or []
        for name in [modules] if isinstance(modules, str) else modules:
            package = str(name).partition(".")[0]
            if not package or find_spec(package) is None:
                yield missing(config, f"actor_rollout_ref.{setting}", str(name), "a module that can be imported")


def check_engine(name: str, device: str | None = None) -> Iterator[ConfigError]:
    known = list(ENGINES) if name in ENGINES else engines_of_verl()
    if name not in known:
        rule = "it names a rollout engine that is registered with verl"
        yield ConfigError(f"actor_rollout_ref.rollout.name={name}", rule=rule, fix=nearest(str(name), known))
    if check := facts_of(name).check_ready:
        yield from raised_by(check, device)


def engines_of_verl() -> list[str]:
    """With those that a package registers with verl itself. Importing verl takes seconds."""
    from verl.workers.rollout import replica

    return list(replicas(replica))


def check_installed(config: DictConfig) -> Iterator[Problem]:
    """The packages that the engine and the model's attention need."""
    name, cpu = config.actor_rollout_ref.rollout.name, config.trainer.device == CPU
    facts = facts_of(name)
    # On the CPU, an engine's own check knows more.
    if facts.package and find_spec(facts.package) is None and not (cpu and facts.check_ready):
        value = f"actor_rollout_ref.rollout.name={name}, and {facts.package} is not installed"
        fix = f"{facts.install or f'install {facts.package}'}, or set actor_rollout_ref.rollout.name"
        error = ConfigError(value, rule="the engine of a policy is installed on every node of the run", fix=fix)
        yield unless_elsewhere(config, error)
    yield from check_compiler(config)
    yield from _compared(config, name)
    found = {package: find_spec(package) is not None for package in ("cupy", "liger_kernel")}
    yield from combinations("installed", config, lacks=lacking(name), found=found)
    # A model may have settings of its own, so only a name that is nearly a common one is one mistyped.
    for name in map(str, config.actor_rollout_ref.model.get("override_config") or {}):
        if name not in OVERRIDDEN and (meant := closest(name, OVERRIDDEN, cutoff=0.9)):
            value = f"actor_rollout_ref.model.override_config.{name}"
            reason = "the name is added to the model's config, and nothing reads it there"
            yield ConfigWarning(value, reason=reason, fix=f"did you mean {meant}?")
    used = attention(config)
    if cpu and is_flash(used):
        yield ConfigError(
            f"{ATTENTION}={used} on the CPU", rule="flash-attn computes on GPUs only", fix=f"set ++{ATTENTION}=sdpa"
        )
    # Without flash_attn, transformers downloads the same kernel if the package `kernels` is there.
    elif not cpu and used == DEFAULT_ATTENTION and not any(find_spec(package) for package in (PACKAGE, "kernels")):
        asked = OmegaConf.select(config, ATTENTION) is not None
        rule = "the package of the attention is installed" if asked else f"verl loads models with {used} by default"
        fix = f"set ++{ATTENTION}=sdpa, or install flash-attn: docs/gpu-quickstart.md has the command"
        value = f"{ATTENTION}={used}, and flash_attn is not installed" if asked else "flash_attn is not installed"
        # Of other machines the plan says that it assumes it.
        if asked or target() is None:
            yield unless_elsewhere(config, ConfigError(value, rule=rule, fix=fix))


def _compared(config: DictConfig, engine: str) -> Iterator[Problem]:
    """An engine of a version that verl cannot start, or that was not compared with what verl-mas uses of it."""
    known = contracts().get(engine)
    if known and (why := known.unstartable):
        value = f"{engine} {installed_version(engine)} is installed"
        fix = f"install a version from {' to '.join(known.tested)}: docs/gpu-quickstart.md has the commands"
        yield unless_elsewhere(config, ConfigError(value, rule=why, fix=fix))
    elif known and (version := known.untested):
        oldest, newest = known.tested
        found = "; ".join(missing_names(known.used)) or "all names that verl-mas uses are there"
        yield ConfigWarning(
            f"{engine} {version} is installed",
            reason=f"verl-mas was compared with {oldest} to {newest}; of this one: {found}",
            fix=f"install {engine}=={oldest}, which verl 0.9.1 requires",
        )
