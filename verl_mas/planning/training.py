"""Bytes that the training process of a policy takes on its GPU, in host memory and on disk."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from verl_mas.planning.hardware import GIB
from verl_mas.planning.load import Policy, Terms
from verl_mas.planning.model import SERVED, ModelSize, Vision
from verl_mas.planning.path import FUSED

Moment: TypeAlias = Callable[[Policy], Terms]
# CUDA context, NCCL's buffers and fragmentation of the allocator, per process.
CONTEXT = 1.0 * GIB
# Adam keeps two values per trained parameter (ADAM). The optimiser's step needs one more, temporary value per parameter
# (ADAM_STEP). All three values have the parameter's dtype.
ADAM, ADAM_STEP = 2, 1
# Bytes of attention masks per pair of tokens. MASK: the boolean mask, which all layers share. MASK_OF_LAYER: a copy in
# bfloat16. The current layer has two of them, one of which has padded rows (torch's `convert_boolean_attn_mask` and
# `pad_bias`). The backward pass needs the padded copy, so without checkpointing every layer keeps one.
MASK, MASK_OF_LAYER = 1, 2
# CHUNK: number of tokens whose logits verl's fused kernels compute at a time, in float32. CHUNK_SCORED, CHUNK_UPDATED:
# bytes per logit of a chunk in the log-prob pass and in the update, at the line of
# `verl.utils.experimental.torch_functional` that holds the most memory.
CHUNK, CHUNK_SCORED, CHUNK_UPDATED = 512, 14, 22


def parameters(policy: Policy) -> float:
    """Bytes of one GPU's shard of the parameters, including adapters on the model."""
    adapters = policy.trained_element * sum(policy.adapters)
    return (policy.element * policy.model.parameters + adapters) / policy.shards


def gradients(policy: Policy) -> float:
    return policy.trained_element * policy.trained / policy.shards


def adam(policy: Policy) -> float:
    kept = sum(policy.adapters) or policy.trained
    return ADAM * policy.trained_element * kept / policy.shards


def at_rest(policy: Policy, *, begun: bool = True) -> Terms:
    """Memory that stays on the GPU while other policies compute. `begun`: whether Adam's state exists, that is, an
    optimiser step has run."""
    if not policy.trains:
        return {}
    stays = not policy.always_on_cpu
    return beside(policy, begun=begun) | {
        "contexts": CONTEXT,
        "parameters": parameters(policy) if stays and not policy.param_offload else 0.0,
        "Adam": adam(policy) if stays and begun and not _adam_leaves(policy) else 0.0,
    }


def beside(policy: Policy, *, begun: bool = True) -> dict[str, float]:
    """Memory that a policy's critic keeps on the GPU. The critic has no CUDA context of its own, because it runs in the
    policy's process."""
    return {"critic": _sum(at_rest(policy.critic, begun=begun)) - CONTEXT} if policy.critic else {}


def _fuller(own: Terms, policy: Policy, moment: Moment) -> Terms:
    """Return the terms with the larger sum: the policy's terms `own`, or the critic's terms at the same moment together
    with the memory that the policy keeps at rest."""
    if policy.critic is None:
        return own
    rest = _sum(at_rest(replace(policy, critic=None))) - CONTEXT
    return max(own, {**moment(policy.critic), "policy": rest}, key=_sum)


def _sum(terms: Terms) -> float:
    return sum(terms.values())


def _adam_leaves(policy: Policy) -> bool:
    """Whether Adam's state is moved to the host between updates.

    The state of adapters on a base stays on the GPU: it is small, and would have to move for each adapter.
    """
    return policy.optimizer_offload and not policy.adapters


def log_probs(policy: Policy) -> Terms:
    """Memory while log-probs of the policy, or values of its critic, are computed.

    For this pass, offloaded parameters are loaded to the GPU, but Adam's state is not loaded.
    """
    loaded = {"parameters": 0.0 if policy.always_on_cpu else parameters(policy)}
    return _fuller({**at_rest(policy), **loaded, **scored(policy)}, policy, log_probs)


def update(policy: Policy) -> Terms:
    """The worst moment of an update: at the end of a forward pass, or in the optimiser's step."""
    shard, shared = 0.0 if policy.always_on_cpu else 1.0, gradients(policy)
    state = {
        "contexts": CONTEXT,
        "parameters": shard * parameters(policy),
        "gradients": shard * shared * (1 + policy.sync_once * policy.shards),
        "Adam": shard * adam(policy),
    }
    step = {"Adam's step": shard * ADAM_STEP * shared}
    fullest: Terms = max(step, updated(policy), key=_sum)
    return _fuller({**beside(policy), **state, **fullest}, policy, update)


def scored(policy: Policy) -> Terms:
    """Memory of a micro batch in the log-prob pass. The activations of all layers are freed before the logits exist."""
    tokens, layer = policy.log_prob_tokens, layer_activations(policy.model, policy.log_prob_tokens)
    of_head = logits(policy, tokens, policy.logits, CHUNK_SCORED)
    return {
        "gathered layers": gathered(policy),
        **({"logits": of_head} if of_head > layer else {"activations": layer}),
        "images": images(policy, tokens, kept=False),
        "attention mask": mask(policy, tokens, layers=1),
    }


def updated(policy: Policy) -> Terms:
    """Peak memory of a micro batch in the update: at the end of the forward pass, or in the backward pass of a
    recomputed layer. The backward pass of the head comes first, and frees the logits."""
    model, tokens, again = policy.model, policy.update_tokens, layer_activations(policy.model, policy.update_tokens)
    of_head = logits(policy, tokens, policy.logits_update, CHUNK_UPDATED)
    kept = SERVED * model.layers * tokens * model.hidden if policy.checkpointing else model.layers * again
    with_logits = of_head > again or not policy.checkpointing
    # The head's gradient is unsharded until the reduce-scatter. With LoRA the head has no gradient.
    head = 0.0 if policy.lora else SERVED * model.embedding
    return {
        "gathered layers": gathered(policy) + head,
        "logits": of_head if with_logits else 0.0,
        "activations": kept if with_logits else kept + again,
        "images": images(policy, tokens, kept=True),
        "attention mask": mask(policy, tokens, layers=1 if policy.checkpointing else model.layers),
    }


def logits(policy: Policy, tokens: int, of_each: int, of_fused: int) -> float:
    size = of_fused * min(CHUNK, tokens) if policy.path.log_probs == FUSED else of_each * tokens
    return float(size * policy.model.vocabulary)


def gathered(policy: Policy) -> float:
    """Bytes of unsharded parameters in bfloat16: the embedding or head, the parts of a vision tower outside its layers,
    the current layer and the next one. Without resharding, all parameters are unsharded."""
    model, vision = policy.model, policy.model.vision
    beside = model.tower - (vision.layers * vision.layer if vision else 0)
    return SERVED * (model.embedding + beside + 2 * model.layer if policy.reshard else model.parameters)


def mask(policy: Policy, tokens: int, layers: int) -> float:
    """Bytes of attention masks. `layers`: how many layers keep a copy. The current layer has a second copy."""
    return float(policy.path.masked * (MASK + MASK_OF_LAYER * (layers + 1)) * tokens**2)


def images(policy: Policy, tokens: int, *, kept: bool) -> float:
    """Bytes of a micro batch's pixels and of the vision tower's activations. `kept`: whether all activations that a
    backward pass needs are kept."""
    if (vision := policy.model.vision) is None:
        return 0.0
    seen = policy.images * tokens
    patches = seen * vision.merged
    layer = layer_activations(vision, patches)
    if not kept:
        return seen * vision.pixels + layer
    # With checkpointing, every layer's input is kept and one layer is recomputed at a time. Without it, all activations
    # of every layer are kept.
    inputs = SERVED * vision.layers * patches * vision.hidden + layer
    return seen * vision.pixels + (inputs if policy.checkpointing else vision.layers * layer)


def layer_activations(model: ModelSize | Vision, tokens: float) -> float:
    """Bytes of one layer's activations: about eight tensors as wide as the model and three as wide as the MLP, in
    bfloat16."""
    return SERVED * tokens * (8 * model.hidden + 3 * model.intermediate)


def host(policy: Policy, gpus: int, *, begun: bool = True) -> Terms:
    """Pinned host memory of the training processes on one node, which has `gpus` GPUs."""
    if not policy.trains:
        return {}
    moved, tensors = policy.always_on_cpu, policy.model.tensors
    of_model = gpus * pinned(tensors, policy.element, policy.shards)
    kept = (sum(policy.adapters) or policy.trained,) if policy.lora else tensors
    of_trained = gpus * pinned(kept, policy.trained_element, policy.shards)
    return {
        "critic": _sum(host(policy.critic, gpus, begun=begun)) if policy.critic else 0.0,
        "parameters": of_model if moved or policy.param_offload else 0.0,
        "gradients": of_trained if moved and begun else 0.0,
        "Adam": ADAM * of_trained if begun and (moved or _adam_leaves(policy)) else 0.0,
        "reference": of_model if policy.reference else 0.0,
    }


def pinned(elements: tuple[int, ...], size: int, shards: int) -> float:
    """Bytes of pinned tensors on one rank: torch rounds each tensor up to a power of two."""
    return float(sum(1 << max(0, -(-count * size // shards) - 1).bit_length() for count in elements))


def load_host(policy: Policy, gpus: int) -> float:
    """Host memory while the model is loaded. If the head is tied to the embedding, every process reads the whole model.
    Otherwise only the first process reads it."""
    return float(policy.trains * policy.element * policy.model.parameters * (gpus if policy.model.tied else 1))


def checkpoint(policy: Policy) -> float:
    """Bytes on disk of one checkpoint."""
    if not policy.trains:
        return 0.0
    if policy.adapters:
        return sum(map(adapter_checkpoint, policy.adapters))
    return (
        ("model" in policy.saved) * policy.element * policy.model.parameters
        + ("optimizer" in policy.saved) * ADAM * policy.element * policy.trained
        + ("hf_model" in policy.saved) * policy.model.served
        + (checkpoint(policy.critic) if policy.critic else 0.0)
    )


def adapter_checkpoint(parameters: int) -> float:
    """Bytes of one adapter's checkpoint: weights and Adam in float32. Its base is not saved."""
    return 4.0 * (1 + ADAM) * parameters
