"""Memory of an engine in bytes, on each GPU of a replica and on the host.

`rollout.gpu_memory_utilization` has two meanings (`EngineMemory.of_free`). Some engines take that share of the whole
GPU, including context and CUDA graphs. Other engines take that share of the memory that is free when they start, for
weights and KV cache; such an engine needs further memory for context and graphs.
"""

from verl_mas.planning.hardware import GIB
from verl_mas.planning.load import Policy, Terms
from verl_mas.planning.model import SERVED, ModelSize
from verl_mas.planning.training import CONTEXT, layer_activations

# GRAPHS: captured CUDA graphs. WORKSPACE: activations of the largest batch.
GRAPHS, WORKSPACE = 1.0 * GIB, 0.5 * GIB
# Tokens of the largest image that Qwen's processors accept by default. Engines process one such image at their start.
LARGEST_IMAGE = 16_384
# verl's checkpoint engine, which sends weights from one pool to another, allocates this number of buckets on each side.
APART_BUCKETS = 2


def weights(policy: Policy) -> float:
    """Bytes of the weights on one GPU, with slots for adapters. vLLM allocates slots for all layers, even if adapters
    are on few layers."""
    return (policy.model.served + SERVED * policy.ranks * policy.model.adapted()) / policy.parts


def kv_per_token(policy: Policy) -> float:
    """Bytes of one token's keys and values on one GPU."""
    return policy.model.kv_bytes(policy.tensor_parallel) / policy.pipeline_parallel


def encoder(model: ModelSize) -> float:
    """Bytes of the activations of one layer of the vision tower, for the largest image."""
    vision = model.vision
    return layer_activations(vision, LARGEST_IMAGE * vision.merged) if vision else 0.0


def beside(policy: Policy) -> Terms:
    """Memory of an awake engine besides weights and KV cache."""
    return {"contexts": CONTEXT, "CUDA graphs": WORKSPACE + (0.0 if policy.eager else GRAPHS)}


def kv_cache(policy: Policy, card: float, free: float) -> float:
    """Bytes of the KV cache on one GPU; negative if the weights alone exceed the fraction.

    `card`: the whole GPU. `free`: its free memory when the engine starts.
    """
    if policy.elsewhere:
        return 0.0
    if policy.cache_bytes is not None:
        return float(policy.cache_bytes)
    if policy.fraction is None:
        return kv_per_token(policy) * policy.sequences * policy.row
    if policy.memory.of_free:
        return policy.fraction * free - weights(policy)
    return policy.fraction * card - weights(policy) - encoder(policy.model) - sum(beside(policy).values())


def awake(policy: Policy, cache: float) -> Terms:
    if policy.elsewhere:
        return {}
    kept = {"weights": weights(policy), "KV cache": max(0.0, cache)}
    return {**beside(policy), **kept, "images": encoder(policy.model)}


def asleep(policy: Policy, cache: float) -> Terms:
    """Memory of a sleeping engine. The context and the captured graphs stay. Some engines that serve adapters also keep
    the weights of the base."""
    if policy.elsewhere or policy.receives or not policy.sleeps:
        return awake(policy, cache)
    kept = weights(policy) if policy.serves_adapters and policy.memory.keeps_base else 0.0
    return {**beside(policy), "weights": kept}


def syncing(policy: Policy) -> Terms:
    """Memory while weights arrive: the engine has its weights but no KV cache; the trainer gathers tensors and sends
    them in buckets.

    Weights from another pool arrive in two buckets at a time, and a third bucket passes them to the engine. The weights
    of a snapshot are read from a folder into one bucket.
    """
    here = {} if policy.elsewhere else {**beside(policy), "weights": weights(policy)}
    if policy.receives:
        return {**here, "bucket": received(policy)}
    if not policy.trains:
        return {**here, "bucket": float(policy.bucket)} if policy.snapshot else here
    buckets = (APART_BUCKETS if policy.elsewhere else 1) * float(policy.bucket)
    return {**here, "bucket": buckets, "gathered tensor": float(policy.element * policy.model.largest)}


def received(policy: Policy) -> float:
    """Bytes of the buckets next to an engine that receives weights from another pool."""
    return (APART_BUCKETS + 1) * float(policy.bucket)


def host_copy(policy: Policy, *, phases: bool) -> float:
    """Bytes of one replica's weights in host memory. Some engines always have a copy. Other engines have a copy only if
    they must keep their weights while they sleep."""
    if policy.elsewhere or policy.receives:
        return 0.0
    kept = phases or not policy.trains or policy.serves_adapters
    copied = policy.memory.host_copy or (policy.fraction is not None and kept)
    return float(policy.model.served * policy.data_parallel) if copied else 0.0
