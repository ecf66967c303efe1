"""Whether a policy's LoRA settings can be trained, and served by its engine."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from verl_mas.checks.model_folder import modules
from verl_mas.checks.place import missing
from verl_mas.checks.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import SEPARATE, mode_of
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning


def check_lora(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy."""
    model = view[SECTION].model
    rank = model.get("lora_rank")
    if type(rank) is not int or rank < 0:
        return  # Refused where values are checked.
    adapter = model.get("lora_adapter_path")
    yield from check_unread_rank(view, f"policy {policy}")
    if adapter and not rank:
        yield ConfigError(
            f"policy {policy}: model.lora_adapter_path={adapter} with model.lora_rank=0",
            rule="verl loads an adapter only where lora_rank is above 0",
            fix="set lora_rank to the rank of the adapter, or lora_adapter_path=null",
        )
    if rank:
        if isinstance(adapter, str) and adapter.startswith(("/", "~", ".")) and not Path(adapter).expanduser().is_dir():
            yield missing(view, f"policy {policy}: model.lora_adapter_path", adapter, "a folder that exists")
        yield from check_trainable(f"policy {policy}", rank)
        yield from check_targets(view, policy, modules(view[SECTION].model))
        if not (model.get("lora") or {}).get("merge"):
            yield from _served(view, policy)


def check_unread_rank(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    unread, strategy = (view[SECTION].model.get("lora") or {}).get("rank"), view[SECTION].actor.strategy
    if unread and strategy != "megatron":
        yield ConfigError(
            f"{policy}: model.lora.rank={unread} with actor.strategy={strategy}",
            rule="FSDP reads model.lora_rank; model.lora.rank is Megatron's",
            fix=f"set {SECTION}.model.lora_rank={unread} and {SECTION}.model.lora.rank=0",
        )


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
        yield ConfigError(
            f"{policy}: model.lora_rank={rank}, and peft is not installed",
            rule="verl trains adapters with peft",
            fix="pip install peft",
        )


def check_targets(view: DictConfig, policy: str, known: list[str] | None) -> Iterator[Problem]:
    """PEFT's rule: a text is a regular expression for whole names, an item of a list is a name or its last parts.

    `known`: the modules that an adapter of the policy can be on; None: not known.
    """
    wanted = view[SECTION].model.get("target_modules")
    if wanted is None or wanted == "all-linear" or known is None:
        return
    path = f"policy {policy}: model.target_modules"
    short = sorted({name.rsplit(".", 1)[-1] for name in known})
    fix = f"set it to all-linear, or to a list of: {', '.join(short)}"
    if isinstance(wanted, str):
        try:
            found = any(re.fullmatch(wanted, name) for name in known)
        except re.error as error:
            yield ConfigError(f"{path}={wanted}", rule=f"a text is a regular expression: {error}", fix=fix)
            return
        if not found:
            yield ConfigError(f"{path}={wanted}", rule="as a regular expression it matches a module", fix=fix)
        return
    items = [str(item) for item in wanted] if isinstance(wanted, ListConfig) else [str(wanted)]
    missing = [item for item in items if not any(name == item or name.endswith(f".{item}") for name in known)]
    if len(missing) == len(items):
        yield ConfigError(f"{path}={items}", rule="an adapter is on modules that the model has", fix=fix)
    elif missing:
        yield ConfigWarning(
            f"{path}={items}", reason=f"the model has no module {', '.join(missing)} that an adapter can be on", fix=fix
        )


def _served(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    rollout, fix = view[SECTION].rollout, f"set {SECTION}.model.lora.merge=True"
    targets = view[SECTION].model.get("target_modules")
    value = f"policy {policy}: model.lora_rank={view[SECTION].model.lora_rank} with model.lora.merge=False"
    if not facts_of(str(rollout.name)).takes_adapters:
        yield ConfigError(
            f"{value} and rollout.name={rollout.name}",
            rule="this engine takes whole weights, so the trainer merges the adapter into them",
            fix=fix,
        )
    elif (most := facts_of(str(rollout.name)).highest_rank) and view[SECTION].model.lora_rank > most:
        yield ConfigError(
            f"{value} and rollout.name={rollout.name}",
            rule=f"this engine serves adapters of rank {most} at most",
            fix=f"lower {SECTION}.model.lora_rank, or {fix}",
        )
    elif rollout.name == "sglang" and isinstance(targets, str) and targets != "all-linear":
        yield ConfigError(
            f"policy {policy}: model.target_modules={targets} with model.lora.merge=False and rollout.name=sglang",
            rule="SGLang takes the names of modules, not a regular expression",
            fix=f"{fix}, or {SECTION}.model.target_modules to all-linear or a list of names",
        )
    # In the mode with separate engines, the mode's own check refuses it.
    elif rollout.checkpoint_engine.backend != "naive" and mode_of(view) is not SEPARATE:
        yield ConfigError(
            f"{value} and rollout.checkpoint_engine.backend={rollout.checkpoint_engine.backend}",
            rule="only the backend naive sends adapters; others would leave the engine with the base weights",
            fix=f"{fix}, or {SECTION}.rollout.checkpoint_engine.backend=naive",
        )
    elif view.trainer.device == "cpu" and rollout.load_format == "dummy":
        yield ConfigError(
            f"{value} and rollout.load_format=dummy",
            rule="on the CPU vLLM reads the base weights from disk, only the adapter is sent",
            fix=f"set {SECTION}.rollout.load_format=auto, or {SECTION}.model.lora.merge=True",
        )
