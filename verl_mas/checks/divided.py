"""What is divided among GPUs without a remainder: attention heads by engines, parameters and sequences by FSDP."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from verl_mas.checks.model_folder import model_number
from verl_mas.checks.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning

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
            yield ConfigError(
                f"policy {policy}: {key}={size} on a pool of {gpus} GPUs",
                rule="it divides the GPUs of the pool",
                fix=f"set {SECTION}.{key} to a divisor of {gpus}",
            )
    yield from _heads(view, policy, ULYSSES, parts)
    if actor.strategy == "fsdp" and fsdp.get("offload_policy"):
        yield ConfigWarning(
            f"policy {policy}: actor.fsdp_config.offload_policy=True with actor.strategy=fsdp",
            reason="only fsdp2 reads it, so nothing is offloaded",
            fix=f"set {SECTION}.actor.strategy=fsdp2, or param_offload and optimizer_offload",
        )


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
