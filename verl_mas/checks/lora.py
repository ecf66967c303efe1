"""Whether a policy's LoRA settings can be trained, and served by its engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_mas.checks.verl.model_folder import modules
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.adapters import ALL_LINEAR, Targets, plain, targeted
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import SEPARATE, mode_of
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning


def check_lora(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy."""
    model, rollout, who = view[SECTION].model, view[SECTION].rollout, f"policy {policy}"
    rank, adapter = model.get("lora_rank"), model.get("lora_adapter_path")
    yield from check_unread_rank(view, who)
    if adapter and not rank:
        value = f"{who}: model.lora_adapter_path={adapter} with model.lora_rank=0"
        rule = "verl loads an adapter only where lora_rank is above 0"
        yield ConfigError(value, rule=rule, fix="set lora_rank to the rank of the adapter, or lora_adapter_path=null")
    if not rank:
        return
    yield from check_trainable(who, rank)
    known = modules(model)
    yield from check_targets(view, policy, known)
    if (model.get("lora") or {}).get("merge"):
        return
    facts, fix = facts_of(str(rollout.name)), f"set {SECTION}.model.lora.merge=True"
    value = f"{who}: model.lora_rank={rank} with model.lora.merge=False and rollout"
    if not facts.takes_adapters:
        rule = "this engine takes whole weights, so the trainer merges the adapter into them"
        yield ConfigError(f"{value}.name={rollout.name}", rule=rule, fix=fix)
    elif facts.highest_rank and rank > facts.highest_rank:
        rule = f"this engine serves adapters of rank {facts.highest_rank} at most"
        yield ConfigError(f"{value}.name={rollout.name}", rule=rule, fix=f"lower {SECTION}.model.lora_rank, or {fix}")
    elif rollout.name == "sglang" and (wrong := list(check_sglang_targets(view, policy, known))):
        yield from (ConfigError(error.value, rule=error.rule, fix=f"{error.fix}, or {fix}") for error in wrong)
    # In the mode with separate engines, the mode's own check refuses it.
    elif rollout.checkpoint_engine.backend != "naive" and mode_of(view) is not SEPARATE:
        value = f"{value}.checkpoint_engine.backend={rollout.checkpoint_engine.backend}"
        rule = "only the backend naive sends adapters; others would leave the engine with the base weights"
        yield ConfigError(value, rule=rule, fix=f"{fix}, or {SECTION}.rollout.checkpoint_engine.backend=naive")
    elif view.trainer.device == "cpu" and rollout.load_format == "dummy":
        rule = "on the CPU vLLM reads the base weights from disk, only the adapter is sent"
        fix = f"set {SECTION}.rollout.load_format=auto, or {SECTION}.model.lora.merge=True"
        yield ConfigError(f"{value}.load_format=dummy", rule=rule, fix=fix)


def check_unread_rank(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    unread, strategy = (view[SECTION].model.get("lora") or {}).get("rank"), view[SECTION].actor.strategy
    if unread and strategy != "megatron":
        rule = "FSDP reads model.lora_rank; model.lora.rank is Megatron's"
        fix = f"set {SECTION}.model.lora_rank={unread} and {SECTION}.model.lora.rank=0"
        yield ConfigError(f"{policy}: model.lora.rank={unread} with actor.strategy={strategy}", rule=rule, fix=fix)


def check_frozen_adapter(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    if rank := view[SECTION].model.get("lora_rank"):
        yield ConfigError(
            f"policy {policy}: model.lora_rank={rank} with trainable=False",
            rule="the trainer sends adapters to the engine, and a frozen policy has none: SGLang fails, vLLM serves "
            "the base weights",
            fix="merge the adapter into the weights and set model.path to them, and lora_rank=0",
        )


def check_trainable(policy: str, rank: object) -> Iterator[ConfigError]:
    if importlib.util.find_spec("peft") is None:
        value = f"{policy}: model.lora_rank={rank}, and peft is not installed"
        yield ConfigError(value, rule="verl trains adapters with peft", fix="pip install peft")


def check_targets(view: DictConfig, policy: str, known: list[str] | None) -> Iterator[Problem]:
    """`known`: the modules that an adapter of the policy can be on; None: not known."""
    if known is None:
        return
    wanted, excluded = targets(view)
    path = f"policy {policy}: model.target_modules"
    short = sorted({name.rsplit(".", 1)[-1] for name in known})
    fix = f"set it to all-linear, or to a list of: {', '.join(short)}"
    try:
        found, kept = targeted(known, wanted), targeted(known, wanted, excluded)
    except ConfigError as error:
        yield ConfigError(f"policy {policy}: {error.value}", rule=error.rule, fix=fix)
        return
    if not found:
        rule = "as a regular expression it matches a module" if isinstance(wanted, str) else _NO_MODULE
        yield ConfigError(f"{path}={wanted}", rule=rule, fix=fix)
    elif not kept:
        yield ConfigError(f"{path}={wanted} with exclude_modules={excluded}", rule=_NO_MODULE, fix="exclude fewer")
    elif not isinstance(wanted, str) and (missing := [item for item in wanted or () if not targeted(known, [item])]):
        reason = f"the model has no module {', '.join(missing)} that an adapter can be on"
        yield ConfigWarning(f"{path}={wanted}", reason=reason, fix=fix)


_NO_MODULE = "an adapter is on modules that the model has"


def targets(view: DictConfig) -> tuple[Targets, Targets]:
    """`target_modules` and `exclude_modules`."""
    model = view[SECTION].model
    return plain(model.get("target_modules")), plain(model.get("exclude_modules"))


# What SGLang computes in one product, and of it what it needs to stack an adapter's weights.
STACKED = (({"q_proj", "k_proj", "v_proj"}, {"q_proj", "v_proj"}), ({"gate_proj", "up_proj"}, {"gate_proj"}))


def check_sglang_targets(view: DictConfig, policy: str, known: list[str] | None) -> Iterator[ConfigError]:
    """`known`: the modules that an adapter of the policy can be on; None: not known."""
    wanted, excluded = targets(view)
    path = f"policy {policy}: model.target_modules={wanted} with rollout.name=sglang"
    if isinstance(wanted, str) and wanted != ALL_LINEAR:
        rule = "SGLang takes the names of modules, not a regular expression"
        yield ConfigError(path, rule=rule, fix="set it to all-linear or a list of names")
        return
    names = (wanted or ()) if known is None else known
    try:
        each = [name.rpartition(".") for name in targeted(names, wanted, excluded)]
    except ConfigError:
        return  # `check_targets` reports it.
    for parent in dict.fromkeys(parent for parent, _, _ in each):
        on = {last for above, _, last in each if above == parent}
        for stacked, needed in STACKED:
            if on & stacked and not needed <= on:
                yield ConfigError(
                    f"{path} has {', '.join(sorted(on & stacked))} without {', '.join(sorted(needed - on))}",
                    rule="SGLang stacks the weights of query, key and value, and of gate and up: it needs those of "
                    "query and value, and of gate, to serve an adapter on one of them",
                    fix=f"add {', '.join(sorted(needed - on))}",
                )
                return
