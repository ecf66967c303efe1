"""Memory of an engine in bytes, on each GPU of a replica and on the host.

`rollout.gpu_memory_utilization` has two meanings (`EngineMemory.of_free`). Some engines take that share of the whole
GPU, including context and CUDA graphs. Others take that share of the memory that is free when they start, for weights
and KV cache; context and graphs come on top.
"""

from __future__ import annotations

from verl_mas.planning.hardware import GIB
from verl_mas.planning.load import Policy, ServingLoad, Terms
from verl_mas.planning.model import SERVED, ModelSize
from verl_mas.planning.training import CONTEXT, layer_activations

# GRAPHS: captured CUDA graphs. WORKSPACE: activations of the largest batch.
GRAPHS, WORKSPACE = 1.0 * GIB, 0.5 * GIB
# Tokens of the largest image that Qwen's processors accept by default. Engines process such an image when they start.
LARGEST_IMAGE = 16_384
# Number of buckets that verl's checkpoint engine between pools allocates on each side, sending and receiving.
APART_BUCKETS = 2


def weights(model: ModelSize, serving: ServingLoad) -> float:
    """Bytes of the weights on one GPU, with slots for adapters. vLLM allocates slots for all layers, even if adapters
    are on few layers."""
    return (model.served + SERVED * serving.ranks * model.adapted()) / serving.parts


def kv_per_token(model: ModelSize, serving: ServingLoad) -> float:
    """Bytes of one token's keys and values on one GPU."""
    return model.kv_bytes(serving.tensor_parallel) / serving.pipeline_parallel


def encoder(model: ModelSize) -> float:
    """Bytes of the activations of one layer of the vision tower, for the largest image."""
    vision = model.vision
    return layer_activations(vision, LARGEST_IMAGE * vision.merged) if vision else 0.0


def beside(serving: ServingLoad) -> Terms:
    """Memory of an awake engine besides weights and KV cache."""
    return {"contexts": CONTEXT, "CUDA graphs": WORKSPACE + (GRAPHS if serving.graphs else 0.0)}


def kv_cache(model: ModelSize, serving: ServingLoad, card: float, free: float) -> float:
    """Bytes of the KV cache on one GPU; negative if the weights alone exceed the fraction.

    `card`: the whole GPU. `free`: its free memory when the engine starts.
    """
    if serving.elsewhere:
        return 0.0
    if serving.cache is not None:
        return float(serving.cache)
    if serving.fraction is None:
        return kv_per_token(model, serving) * serving.sequences * serving.row
    if serving.memory.of_free:
        return serving.fraction * free - weights(model, serving)
    taken = weights(model, serving) + encoder(model) + sum(beside(serving).values())
    return serving.fraction * card - taken


def awake(model: ModelSize, serving: ServingLoad, cache: float) -> Terms:
    if serving.elsewhere:
        return {}
    kept = {"weights": weights(model, serving), "KV cache": max(0.0, cache)}
    return {**beside(serving), **kept, "images": encoder(model)}


def asleep(model: ModelSize, serving: ServingLoad, cache: float) -> Terms:
    """Memory of a sleeping engine. The context and the captured graphs stay; some engines with an adapter keep their
    weights, too."""
    if serving.elsewhere or not serving.sleeps:
        return awake(model, serving, cache)
    kept = weights(model, serving) if serving.adapter and serving.memory.keeps_base else 0.0
    return {**beside(serving), "weights": kept}


def syncing(policy: Policy) -> Terms:
    """Memory while weights arrive: the engine has its weights but no KV cache; the trainer gathers tensors and sends
    them in buckets.

    Weights from another pool arrive in two buckets at a time, and are passed to the engine in a third bucket. A
    snapshot reads its weights from a folder.
    """
    model, serving, training = policy.model, policy.serving, policy.training
    here = {} if serving.elsewhere else {**beside(serving), "weights": weights(model, serving)}
    if policy.receives:
        return {**here, "bucket": received(serving)}
    if training is None:
        return {**here, "bucket": float(serving.bucket)} if policy.snapshot else here
    buckets = (APART_BUCKETS if serving.elsewhere else 1) * float(serving.bucket)
    return {**here, "bucket": buckets, "gathered tensor": float(training.element * model.largest)}


def received(serving: ServingLoad) -> float:
    """Bytes of the buckets next to an engine that receives weights from another pool."""
    return (APART_BUCKETS + 1) * float(serving.bucket)


def host_copy(policy: Policy, *, phases: bool) -> float:
    """Bytes of one replica's weights in host memory. Some engines always have a copy; others have one if they sleep and
    keep their weights."""
    serving = policy.serving
    if serving.elsewhere or policy.receives:
        return 0.0
    kept = phases or policy.training is None or serving.adapter
    copied = serving.memory.host_copy or (serving.fraction is not None and kept)
    return float(policy.model.served * serving.data_parallel) if copied else 0.0
