"""Whether the numbers of a policy fit: for its update by verl's FSDP, for the GPUs, and for prompts and responses."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.model_folder import has_own_head, is_stateful, model_number, settings
from verl_mas.checks.verl.place import unless_elsewhere
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.verl_settings import attention, is_flash
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError
from verl_mas.planning.hardware import GIB
from verl_mas.platform import DEVICE
from verl_mas.registry import nearest

# Models with a state for which verl 0.9.1 marks where a row of a packed micro batch ends.
PACKED_BY_VERL = ("qwen3_5", "qwen3_5_moe")
# In torch.optim, which is imported for other names: that takes a second.
OPTIMIZERS = ("AdamW", "Adam", "SGD")


def check_training_engine(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy that is trained with FSDP."""
    model = view[SECTION].model
    yield from combinations(
        "fsdp",
        view,
        f"policy {policy}: ",
        parts=_parts(view),
        stateful=is_stateful(model) and settings(model).get("model_type") not in PACKED_BY_VERL,
        own_head=has_own_head(model),
        flash=is_flash(attention(view)),
        quantised="quantization_config" in settings(model),
    )
    yield from _optimizer(view, policy)


def _optimizer(view: DictConfig, policy: str) -> Iterator[Problem]:
    optim = view[SECTION].actor.optim
    module, name = str(optim.optimizer_impl), str(optim.optimizer)
    options = list(map(str, optim.get("override_optimizer_config") or ()))
    if module == "torch.optim" and name in OPTIMIZERS and not options:
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
    elif known is not None:
        taken = list(inspect.signature(known[name]).parameters)
        for option in (option for option in options if option not in taken):
            value = f"policy {policy}: actor.optim.override_optimizer_config.{option}"
            yield ConfigError(value, rule=f"it is an argument of {module}.{name}", fix=nearest(option, taken))


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
    parts = _parts(view)
    # A size of at least all GPUs, or below 0, is all of them.
    sizes = {ULYSSES: parts, "actor.fsdp_config.fsdp_size": max(1, min(int(fsdp.get("fsdp_size", -1)), gpus))}
    for key, size in sizes.items():
        if gpus % size:
            value = f"policy {policy}: {key}={size} on a pool of {gpus} GPUs"
            rule = "it divides the GPUs of the pool"
            yield ConfigError(value, rule=rule, fix=f"set {SECTION}.{key} to a divisor of {gpus}")
    yield from _heads(view, policy, ULYSSES, parts)


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


# Whether prompts and responses fit: in the model's context, the engine's limits and the trainer's token budgets.


OF_MODEL = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
SHARE = 0.4  # of the machine's memory; weights, their optimiser, engine and Ray have the rest


def check_lengths(view: DictConfig, policy: str, *, trained: bool) -> Iterator[Problem]:
    """`view` is the configuration of one policy."""
    rollout = view[SECTION].rollout
    longest = rollout.prompt_length + rollout.response_length
    limit = _whole(view, "rollout.max_model_len")
    context = model_number(view[SECTION].model, "max_position_embeddings")
    needed = -(-longest // _parts(view)) if trained else None
    whose, facts = f"policy {policy}: ", {"context": context, "longest": longest, "needed": needed}
    yield from combinations("lengths", view, whose, **facts)
    for name, most in (("rollout.max_model_len", limit), ("the model's max_position_embeddings", context)):
        if most and longest > most:
            yield ConfigError(
                f"{whose}max_prompt_length + max_response_length = {longest}",
                rule=f"prompt and response fit together in {name}, {most} tokens",
                fix="lower data.max_prompt_length or data.max_response_length"
                + (f", or raise {SECTION}.rollout.max_model_len" if most == limit else ""),
            )
    if trained and OmegaConf.select(view, "trainer.device") == DEVICE:
        yield from _memory(view, policy)


def _memory(view: DictConfig, policy: str) -> Iterator[Problem]:
    """On a CPU a micro batch can take all memory, and the system ends the process, often without a word."""
    from ray._common.utils import get_system_memory

    budget, model = _whole(view, "actor.ppo_max_token_len_per_gpu"), view[SECTION].model
    layers, hidden, wide, vocabulary = (model_number(model, name) for name in OF_MODEL)
    if not (budget and layers and hidden and wide and vocabulary):
        return
    # In float32: logits with their gradient and what the loss makes of them; of a layer, what its backward pass reads.
    of_token = 4 * (5 * vocabulary + layers * (8 * hidden + 3 * wide))
    memory = get_system_memory()  # respects the limit of a container
    gib = {"taken": round(budget * of_token / GIB), "memory": round(memory / GIB)}
    yield from combinations("memory", view, f"policy {policy}: ", most=int(memory * SHARE / of_token), **gib)


def _parts(view: DictConfig) -> int:
    """Workers among which a sequence is divided."""
    own, fsdp = (_whole(view, f"actor.{key}ulysses_sequence_parallel_size") for key in ("", "fsdp_config."))
    return max(own or 1, fsdp or 1)


def _whole(view: DictConfig, key: str) -> int | None:
    value = OmegaConf.select(view, f"{SECTION}.{key}")
    return value if type(value) is int else None
