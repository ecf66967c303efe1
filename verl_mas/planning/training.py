"""What the process that trains a policy holds: on its GPU, in host memory, on disk. Bytes."""

from __future__ import annotations

from verl_mas.planning.hardware import GIB
from verl_mas.planning.load import Terms, Training
from verl_mas.planning.model import SERVED, ModelSize

# CUDA context, NCCL's buffers and the allocator's rest of one process.
CONTEXT = 1.0 * GIB
# Adam has two numbers per trained parameter, and its step one more for a moment, of the parameter's type.
ADAM, ADAM_STEP = 2, 1


def parameters(model: ModelSize, training: Training) -> float:
    """The shard of one GPU."""
    return training.element * model.parameters / training.shards


def adam(model: ModelSize, training: Training) -> float:
    return ADAM * training.element * training.trained(model) / training.shards


def at_rest(model: ModelSize, training: Training | None, *, begun: bool = True) -> Terms:
    """What stays on the GPU while others compute. `begun`: the first optimiser step has made Adam's state.

    A frozen policy has no training process.
    """
    if training is None:
        return {}
    stays = not training.always_on_cpu
    return {
        "contexts": CONTEXT,
        "parameters": parameters(model, training) if stays and not training.param_offload else 0.0,
        "Adam": adam(model, training) if stays and begun and not training.optimizer_offload else 0.0,
    }


def log_probs(model: ModelSize, training: Training) -> Terms:
    """While the log-probs of the policy are computed. Parameters are loaded for it, Adam is not."""
    tokens = training.log_prob_tokens
    return {
        **at_rest(model, training),
        "parameters": 0.0 if training.always_on_cpu else parameters(model, training),
        "gathered layers": gathered(model),
        "logits": training.logits * tokens * model.vocabulary,
        "activations": layer_activations(model, tokens),
    }


def update(model: ModelSize, training: Training) -> Terms:
    """The worst moment of an update: at the end of a forward pass, or in the optimiser's step."""
    shard = 0.0 if training.always_on_cpu else 1.0
    trained = training.trained(model) / training.shards
    state = {
        "contexts": CONTEXT,
        "parameters": shard * parameters(model, training),
        "gradients": shard * training.element * trained,
        "Adam": shard * adam(model, training),
    }
    backward = {
        "gathered layers": gathered(model),
        "logits": float(training.logits_update * training.update_tokens * model.vocabulary),
        "activations": activations(model, training),
    }
    step = {"Adam's step": shard * ADAM_STEP * training.element * trained}
    return state | max(backward, step, key=lambda terms: sum(terms.values()))


def gathered(model: ModelSize) -> float:
    """Whole parameters in bfloat16: embedding or head, the layer that computes, and the next one."""
    return SERVED * (model.embedding + 2 * model.layer)


def activations(model: ModelSize, training: Training) -> float:
    """With checkpointing the input of every layer, and what one layer recomputes; without it all of every layer."""
    tokens = training.update_tokens
    if not training.checkpointing:
        return model.layers * layer_activations(model, tokens)
    return SERVED * model.layers * tokens * model.hidden + layer_activations(model, tokens)


def layer_activations(model: ModelSize, tokens: int) -> float:
    """About eight tensors as wide as the model, and three as wide as the MLP, in bfloat16."""
    return SERVED * tokens * (8 * model.hidden + 3 * model.intermediate)


def host(model: ModelSize, training: Training | None, gpus: int, *, begun: bool = True) -> Terms:
    """Pinned memory of the `gpus` processes on one node."""
    if training is None:
        return {}
    moved = training.always_on_cpu
    size, shards = training.element, training.shards
    adapters = [training.trained(model)] if training.adapter_rank else list(model.tensors)
    return {
        "parameters": gpus * pinned(model.tensors, size, shards) if moved or training.param_offload else 0.0,
        "gradients": gpus * pinned(adapters, size, shards) if moved and begun else 0.0,
        "Adam": ADAM * gpus * pinned(adapters, size, shards)
        if begun and (moved or training.optimizer_offload)
        else 0.0,
        "reference": gpus * pinned(model.tensors, size, shards) if training.reference else 0.0,
    }


def pinned(elements: tuple[int, ...] | list[int], size: int, shards: int) -> float:
    """Bytes of pinned tensors on one rank: torch rounds each one up to a power of two."""
    return float(sum(1 << max(0, -(-count * size // shards) - 1).bit_length() for count in elements))


def load_host(model: ModelSize, training: Training | None, gpus: int) -> float:
    """While the model is loaded: every process reads all of a tied model, else only the first one does."""
    if training is None:
        return 0.0
    return training.element * model.parameters * (gpus if model.tied else 1)


def checkpoint(model: ModelSize, training: Training | None) -> float:
    """Bytes on disk of one checkpoint."""
    if training is None:
        return 0.0
    saved = training.saved
    return (
        ("model" in saved) * training.element * model.parameters
        + ("optimizer" in saved) * ADAM * training.element * training.trained(model)
        + ("hf_model" in saved) * model.served
    )
