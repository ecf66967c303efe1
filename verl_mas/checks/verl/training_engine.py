"""Whether verl's FSDP can update a policy: optimiser, micro batches, parallelism, and what divides the GPUs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from omegaconf import DictConfig

from verl_mas.checks.verl.model_folder import model_number
from verl_mas.checks.verl.place import unless_elsewhere
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.verl_settings import ATTENTION, DEFAULT_ATTENTION, attention, is_flash
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest

SCHEDULES = ("constant", "cosine")
# In torch.optim, which is imported for other names: that takes a second.
OPTIMIZERS = ("AdamW", "Adam", "SGD")
# Where micro batches are not filled by tokens: the size that verl's workers read -> the deprecated one, which only
# verl's own check reads.
SIZES = {
    "actor.ppo_micro_batch_size_per_gpu": "actor.ppo_micro_batch_size",
    "rollout.log_prob_micro_batch_size_per_gpu": "rollout.log_prob_micro_batch_size",
}
REFERENCE_SIZE = {"ref.log_prob_micro_batch_size_per_gpu": "ref.log_prob_micro_batch_size"}


def check_training_engine(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy that is trained with FSDP."""
    actor = view[SECTION].actor
    if actor.optim.get("lr_scheduler_type") not in SCHEDULES:
        yield ConfigError(
            f"policy {policy}: actor.optim.lr_scheduler_type={actor.optim.get('lr_scheduler_type')} with "
            f"actor.strategy={actor.strategy}",
            rule=f"verl's FSDP has the schedules {' and '.join(SCHEDULES)}",
            fix=f"set {SECTION}.actor.optim.lr_scheduler_type={SCHEDULES[-1]}",
        )
    yield from _optimizer(view, policy)
    yield from _micro_batches(view, policy)
    yield from _ulysses(view, policy)


def _optimizer(view: DictConfig, policy: str) -> Iterator[Problem]:
    optim = view[SECTION].actor.optim
    module, name = str(optim.optimizer_impl), str(optim.optimizer)
    if module == "torch.optim" and name in OPTIMIZERS:
        return
    try:
        known = vars(importlib.import_module(module)) if module == "torch.optim" else None
        missing = find_spec(module) is None
    except (ImportError, ValueError):
        known, missing = None, True
    if missing:
        value = f"policy {policy}: actor.optim.optimizer_impl={module}, which cannot be imported"
        fix = f"install it, or set {SECTION}.actor.optim.optimizer_impl=torch.optim"
        error = ConfigError(value, rule="it is the module that has the class actor.optim.optimizer", fix=fix)
        yield unless_elsewhere(view, error)
    elif known is not None and not isinstance(known.get(name), type):
        rule = f"it is the name of a class in {module}"
        fix = nearest(name, [each for each in known if isinstance(known[each], type)])
        yield ConfigError(f"policy {policy}: actor.optim.optimizer={name}", rule=rule, fix=fix)


def _ulysses(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    section = view[SECTION]
    actor, model = section.actor, section.model
    size = max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.get("ulysses_sequence_parallel_size", 1))
    if size == 1:
        return
    setting = f"policy {policy}: a ulysses_sequence_parallel_size of {size}"
    used = attention(view)
    if not model.use_remove_padding:
        rule = "verl divides a sequence without padding among the workers"
        fix = f"set {SECTION}.model.use_remove_padding=True, or {SECTION}.actor.ulysses_sequence_parallel_size=1"
        yield ConfigError(f"{setting} with model.use_remove_padding=False", rule=rule, fix=fix)
    if not is_flash(used):
        yield ConfigError(
            f"{setting} with attn_implementation={used}",
            rule="verl exchanges heads among the workers in flash-attn only; with another implementation each worker "
            "would attend to its own part of a sequence, and the update would be wrong",
            fix=f"set {SECTION}.actor.ulysses_sequence_parallel_size=1, or ++{ATTENTION}={DEFAULT_ATTENTION}",
        )


def _micro_batches(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    section = view[SECTION]
    by_tokens = section.actor.use_dynamic_bsz
    if by_tokens != section.rollout.log_prob_use_dynamic_bsz:
        yield ConfigError(
            f"policy {policy}: actor.use_dynamic_bsz={by_tokens} with "
            f"rollout.log_prob_use_dynamic_bsz={section.rollout.log_prob_use_dynamic_bsz}",
            rule="verl's worker uses one of the two for updates and log-probs",
            fix=f"set {SECTION}.rollout.log_prob_use_dynamic_bsz={by_tokens}",
        )
    sizes = {} if by_tokens else dict(SIZES)
    if section.actor.use_kl_loss and not section.ref.log_prob_use_dynamic_bsz:
        sizes |= REFERENCE_SIZE
    for size, deprecated in sizes.items():
        role, _, key = deprecated.partition(".")
        given = section[role].get(key)
        if section[role].get(size.partition(".")[2]) is None and given is not None:
            value = f"policy {policy}: {deprecated}={given}"
            rule = f"verl's workers read {size}, the size for each of them"
            yield ConfigError(value, rule=rule, fix=f"set {SECTION}.{size}={given}, and remove {SECTION}.{deprecated}")
        elif section[role].get(size.partition(".")[2]) is None and by_tokens:
            # verl asks for the size only where no micro batch is filled by tokens.
            rule = "micro batches of the reference policy are filled by tokens, or have a size"
            fix = f"set {SECTION}.ref.log_prob_use_dynamic_bsz=True, or {SECTION}.{size}"
            yield ConfigError(f"policy {policy}: ref.log_prob_use_dynamic_bsz=False without {size}", rule=rule, fix=fix)


# What is divided among GPUs without a remainder: attention heads by engines, parameters and sequences by FSDP.


TENSOR, ULYSSES = "rollout.tensor_model_parallel_size", "actor.ulysses_sequence_parallel_size"


def check_heads(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    """`view` is the configuration of one policy, with the GPUs of its pool."""
    if not facts_of(str(view[SECTION].rollout.name)).one_process:
        yield from _heads(view, policy, TENSOR, int(view[SECTION].rollout.tensor_model_parallel_size))


def check_sharding(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy that is trained, with the GPUs of its pool."""
    actor, gpus = view[SECTION].actor, int(view.trainer.nnodes * view.trainer.n_gpus_per_node)
    fsdp = actor.get("fsdp_config")
    if fsdp is None:
        return
    parts = max(int(actor.get("ulysses_sequence_parallel_size", 1)), int(fsdp.get("ulysses_sequence_parallel_size", 1)))
    # A size of at least all GPUs, or below 0, is all of them.
    sizes = {ULYSSES: parts, "actor.fsdp_config.fsdp_size": max(1, min(int(fsdp.get("fsdp_size", -1)), gpus))}
    for key, size in sizes.items():
        if gpus % size:
            value = f"policy {policy}: {key}={size} on a pool of {gpus} GPUs"
            rule = "it divides the GPUs of the pool"
            yield ConfigError(value, rule=rule, fix=f"set {SECTION}.{key} to a divisor of {gpus}")
    yield from _heads(view, policy, ULYSSES, parts)
    if actor.strategy == "fsdp" and fsdp.get("offload_policy"):
        value = f"policy {policy}: actor.fsdp_config.offload_policy=True with actor.strategy=fsdp"
        fix = f"set {SECTION}.actor.strategy=fsdp2, or param_offload and optimizer_offload"
        yield ConfigWarning(value, reason="only fsdp2 reads it, so nothing is offloaded", fix=fix)


def _heads(view: DictConfig, policy: str, key: str, parts: int) -> Iterator[ConfigError]:
    model = view[SECTION].model
    heads, shared = model_number(model, "num_attention_heads"), model_number(model, "num_key_value_heads")
    # Heads of keys and values are repeated where there are fewer.
    if heads and (heads % parts or (shared and shared % parts and parts % shared)):
        yield ConfigError(
            f"policy {policy}: {key}={parts} with {model.path}",
            rule=f"it divides the model's {heads} attention heads"
            + (f", and divides or is a multiple of its {shared} heads of keys and values" if shared else ""),
            fix=f"set {SECTION}.{key} to a common divisor",
        )
