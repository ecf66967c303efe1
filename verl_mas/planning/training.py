"""Bytes that the training process of a policy takes on its GPU, in host memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from verl_mas.planning.hardware import GIB
from verl_mas.planning.load import Terms, TrainingLoad
from verl_mas.planning.model import SERVED, ModelSize, Vision
from verl_mas.planning.path import FUSED

Moment: TypeAlias = Callable[[ModelSize, TrainingLoad], Terms]
# CUDA context, NCCL's buffers and fragmentation of the allocator, per process.
CONTEXT = 1.0 * GIB
# Adam keeps two values per trained parameter (ADAM). During its step there is one temporary value more (ADAM_STEP).
# All have the parameter's dtype.
ADAM, ADAM_STEP = 2, 1
# Bytes of attention masks per pair of tokens. MASK: the boolean mask, which all layers share. MASK_OF_LAYER: a copy in
# bfloat16. The current layer has two of them, one of which has padded rows (torch's `convert_boolean_attn_mask` and
# `pad_bias`). The backward pass needs the padded copy, so every layer keeps its own without checkpointing.
MASK, MASK_OF_LAYER = 1, 2
# CHUNK: number of tokens whose logits verl's fused kernels compute at a time, in float32. CHUNK_SCORED, CHUNK_UPDATED:
# bytes per logit of a chunk in the log-prob pass and in the update, at the line of
# `verl.utils.experimental.torch_functional` that holds the most memory.
CHUNK, CHUNK_SCORED, CHUNK_UPDATED = 512, 14, 22


def parameters(model: ModelSize, training: TrainingLoad) -> float:
    """Bytes of one GPU's shard of the parameters, including adapters on the model."""
    adapters = training.trained_element * sum(training.adapters)
    return (training.element * model.parameters + adapters) / training.shards


def gradients(model: ModelSize, training: TrainingLoad) -> float:
    return training.trained_element * training.trained(model) / training.shards


def adam(model: ModelSize, training: TrainingLoad) -> float:
    kept = sum(training.adapters) or training.trained(model)
    return ADAM * training.trained_element * kept / training.shards


def at_rest(model: ModelSize, training: TrainingLoad | None, *, begun: bool = True) -> Terms:
    """Memory that stays on the GPU while others compute. `begun`: whether an optimiser step has made Adam's state.

    A frozen policy has no training process.
    """
    if training is None:
        return {}
    stays = not training.always_on_cpu
    return beside(training, begun=begun) | {
        "contexts": CONTEXT,
        "parameters": parameters(model, training) if stays and not training.param_offload else 0.0,
        "Adam": adam(model, training) if stays and begun and not _adam_leaves(training) else 0.0,
    }


def beside(training: TrainingLoad, *, begun: bool = True) -> dict[str, float]:
    """Memory that a policy's critic keeps on the GPU. It runs in the same process as the policy."""
    critic = training.critic
    return {"critic": _sum(at_rest(critic.model, critic.training, begun=begun)) - CONTEXT} if critic else {}


def _fuller(own: Terms, model: ModelSize, training: TrainingLoad, moment: Moment) -> Terms:
    """Return the policy's terms `own`, or its critic's terms at the same moment if these take more memory."""
    if training.critic is None:
        return own
    rest = _sum(at_rest(model, replace(training, critic=None))) - CONTEXT
    return max(own, {**moment(training.critic.model, training.critic.training), "policy": rest}, key=_sum)


def _sum(terms: Terms) -> float:
    return sum(terms.values())


def _adam_leaves(training: TrainingLoad) -> bool:
    """Whether Adam's state is moved to the host between updates.

    The state of adapters on a base stays on the GPU: it is small, and would have to move for each adapter.
    """
    return training.optimizer_offload and not training.adapters


def log_probs(model: ModelSize, training: TrainingLoad) -> Terms:
    """Memory while log-probs of the policy, or values of its critic, are computed.

    Offloaded parameters are loaded to the GPU for this, Adam's state is not.
    """
    own = {
        **at_rest(model, training),
        "parameters": 0.0 if training.always_on_cpu else parameters(model, training),
        **scored(model, training),
    }
    return _fuller(own, model, training, log_probs)


def update(model: ModelSize, training: TrainingLoad) -> Terms:
    """The worst moment of an update: at the end of a forward pass, or in the optimiser's step."""
    shard = 0.0 if training.always_on_cpu else 1.0
    shared = gradients(model, training)
    state = {
        "contexts": CONTEXT,
        "parameters": shard * parameters(model, training),
        "gradients": shard * shared * (1 + training.sync_once * training.shards),
        "Adam": shard * adam(model, training),
    }
    step = {"Adam's step": shard * ADAM_STEP * shared}
    fullest: Terms = max(step, updated(model, training), key=_sum)
    own = {**beside(training), **state, **fullest}
    return _fuller(own, model, training, update)


def scored(model: ModelSize, training: TrainingLoad) -> Terms:
    """Memory of a micro batch in the log-prob pass. The activations of all layers are freed before the logits exist."""
    tokens, layer = training.log_prob_tokens, layer_activations(model, training.log_prob_tokens)
    of_head = logits(model, training, tokens, training.logits, CHUNK_SCORED)
    return {
        "gathered layers": gathered(model, training),
        **({"logits": of_head} if of_head > layer else {"activations": layer}),
        "images": images(model, training, tokens, kept=False),
        "attention mask": mask(training, tokens, layers=1),
    }


def updated(model: ModelSize, training: TrainingLoad) -> Terms:
    """Peak memory of a micro batch in the update: at the end of the forward pass, or in the backward pass of a
    recomputed layer. By then the logits are gone, as autograd frees them in the backward pass of the head."""
    tokens, again = training.update_tokens, layer_activations(model, training.update_tokens)
    of_head = logits(model, training, tokens, training.logits_update, CHUNK_UPDATED)
    kept = SERVED * model.layers * tokens * model.hidden if training.checkpointing else model.layers * again
    with_logits = of_head > again or not training.checkpointing
    # The head's gradient is unsharded until the reduce-scatter. With LoRA the head has no gradient.
    head = 0.0 if training.lora else SERVED * model.embedding
    return {
        "gathered layers": gathered(model, training) + head,
        "logits": of_head if with_logits else 0.0,
        "activations": kept if with_logits else kept + again,
        "images": images(model, training, tokens, kept=True),
        "attention mask": mask(training, tokens, layers=1 if training.checkpointing else model.layers),
    }


def logits(model: ModelSize, training: TrainingLoad, tokens: int, of_each: int, of_fused: int) -> float:
    size = of_fused * min(CHUNK, tokens) if training.path.log_probs == FUSED else of_each * tokens
    return float(size * model.vocabulary)


def gathered(model: ModelSize, training: TrainingLoad) -> float:
    """Bytes of unsharded parameters in bfloat16: the embedding or head, the parts of a vision tower outside its layers,
    the current layer and the next one. Without resharding, all parameters are unsharded."""
    beside = model.tower - (model.vision.layers * model.vision.layer if model.vision else 0)
    return SERVED * (model.embedding + beside + 2 * model.layer if training.reshard else model.parameters)


def mask(training: TrainingLoad, tokens: int, layers: int) -> float:
    """Bytes of attention masks. `layers`: how many layers keep a copy. The current layer has a second one."""
    return float(training.path.masked * (MASK + MASK_OF_LAYER * (layers + 1)) * tokens**2)


def images(model: ModelSize, training: TrainingLoad, tokens: int, *, kept: bool) -> float:
    """Bytes of a micro batch's pixels and of the vision tower's activations. `kept`: for a backward pass."""
    if (vision := model.vision) is None:
        return 0.0
    seen = training.images * tokens
    patches = seen * vision.merged
    layer = layer_activations(vision, patches)
    if not kept:
        return seen * vision.pixels + layer
    # With checkpointing, every layer's input is kept and one layer is recomputed at a time. Without it, all activations
    # of every layer are kept.
    inputs = SERVED * vision.layers * patches * vision.hidden + layer
    return seen * vision.pixels + (inputs if training.checkpointing else vision.layers * layer)


def layer_activations(model: ModelSize | Vision, tokens: float) -> float:
    """About eight tensors as wide as the model, and three as wide as the MLP, in bfloat16."""
    return SERVED * tokens * (8 * model.hidden + 3 * model.intermediate)


def host(model: ModelSize, training: TrainingLoad | None, gpus: int, *, begun: bool = True) -> Terms:
    """Pinned host memory of the training processes on one node, which has `gpus` of them."""
    if training is None:
        return {}
    moved = training.always_on_cpu
    size, shards, of_trained = training.element, training.shards, training.trained_element
    kept = [sum(training.adapters) or training.trained(model)] if training.lora else list(model.tensors)
    critic = training.critic
    return {
        "critic": _sum(host(critic.model, critic.training, gpus, begun=begun)) if critic else 0.0,
        "parameters": gpus * pinned(model.tensors, size, shards) if moved or training.param_offload else 0.0,
        "gradients": gpus * pinned(kept, of_trained, shards) if moved and begun else 0.0,
        "Adam": ADAM * gpus * pinned(kept, of_trained, shards) if begun and (moved or _adam_leaves(training)) else 0.0,
        "reference": gpus * pinned(model.tensors, size, shards) if training.reference else 0.0,
    }


def pinned(elements: tuple[int, ...] | list[int], size: int, shards: int) -> float:
    """Bytes of pinned tensors on one rank: torch rounds each tensor up to a power of two."""
    return float(sum(1 << max(0, -(-count * size // shards) - 1).bit_length() for count in elements))


def load_host(model: ModelSize, training: TrainingLoad | None, gpus: int) -> float:
    """Host memory while the model is loaded. Every process reads all of a tied model; else only the first one does."""
    if training is None:
        return 0.0
    return training.element * model.parameters * (gpus if model.tied else 1)


def checkpoint(model: ModelSize, training: TrainingLoad | None) -> float:
    """Bytes on disk of one checkpoint."""
    if training is None:
        return 0.0
    saved, critic = training.saved, training.critic
    if training.adapters:
        return sum(map(adapter_checkpoint, training.adapters))
    return (
        ("model" in saved) * training.element * model.parameters
        + ("optimizer" in saved) * ADAM * training.element * training.trained(model)
        + ("hf_model" in saved) * model.served
        + (checkpoint(critic.model, critic.training) if critic else 0.0)
    )


def adapter_checkpoint(parameters: int) -> float:
    """Bytes of one adapter's checkpoint: weights and Adam in float32. Its base is not saved."""
    return 4.0 * (1 + ADAM) * parameters
