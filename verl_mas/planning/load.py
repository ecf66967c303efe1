"""What one policy asks of its GPUs: the inputs of the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from verl_mas.config.merge import SECTION
from verl_mas.planning.model import ModelSize

# Bytes by what they are for: `weights`, `KV cache`, `Adam`.
Terms = Mapping[str, float]


@dataclass(frozen=True)
class Training:
    """How verl trains a policy with FSDP."""

    shards: int
    """GPUs that a parameter is divided among."""

    update_tokens: int
    """Tokens of a micro batch of the update, per GPU."""

    log_prob_tokens: int
    """Tokens of a micro batch of the log-probs, per GPU."""

    element: int = 4
    """Bytes of a trained parameter: verl trains in float32."""

    fsdp2: bool = True
    param_offload: bool = False
    optimizer_offload: bool = False
    always_on_cpu: bool = False
    """FSDP2's own offload policy: parameters, gradients and Adam never are on the GPU."""

    checkpointing: bool = True
    """Gradient checkpointing."""

    by_tokens: bool = True
    """Micro batches are filled up to a number of tokens (`use_dynamic_bsz`)."""

    masked: bool = False
    """Attention has a mask of all pairs of tokens of a micro batch: every implementation but flash-attn's, on packed
    rows."""

    reshard: bool = True
    """Parameters that a layer gathered are dropped after its forward pass."""

    sync_once: bool = False
    """Gradients are divided among the GPUs only with the last micro batch; until then every GPU has all of them."""

    logits: int = 2
    """Bytes per logit in the log-probs: 0 with fused kernels, 4 at a temperature other than 1, which makes a copy."""

    logits_update: int = 4
    """The same in the update: the logits and their gradient, 6 without flash-attn; a copy has a gradient, too."""

    adapter: int = 0
    """Parameters of the policy's own LoRA adapter; 0: none."""

    adapters: tuple[int, ...] = ()
    """The parameters of each adapter on this policy, which is frozen itself. They are trained in turn."""

    reference: bool = False
    """A second model for the KL term. verl keeps it in host memory."""

    saved: frozenset[str] = frozenset(("model", "optimizer", "extra"))
    """actor.checkpoint.save_contents."""

    @property
    def lora(self) -> bool:
        return bool(self.adapter or self.adapters)

    @property
    def trained_element(self) -> int:
        """Bytes of a parameter with a gradient. Adapters on a base are in float32, whatever the base is in."""
        return 4 if self.adapters else self.element

    def trained(self, model: ModelSize) -> int:
        """The parameters that have a gradient at one time."""
        return max(self.adapters, default=self.adapter) or model.parameters


@dataclass(frozen=True)
class Serving:
    """How an engine serves a policy."""

    engine: str
    fraction: float | None
    """rollout.gpu_memory_utilization; None for an engine that does not reserve a share of the GPU."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1

    graphs: bool = True
    """CUDA graphs, which are kept while the engine sleeps."""

    bucket: int = 2 << 30
    """Bytes that weights are sent in."""

    context: int | None = None
    """rollout.max_model_len; None: the model's context."""

    row: int = 0
    """Tokens of the longest prompt and response."""

    sequences: int = 256
    """rollout.max_num_seqs."""

    sleeps: bool = True
    """rollout.free_cache_engine."""

    adapter: bool = False
    """It serves LoRA adapters beside the base weights, which are then kept while it sleeps."""

    ranks: int = 0
    """Of the adapters that it has slots for, added up. All slots are of the largest one's rank."""

    elsewhere: bool = False
    """On another pool than the policy's training processes, of which this is the pool: nothing of it is here."""

    @property
    def parts(self) -> int:
        """GPUs that the weights are divided among."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def replica(self) -> int:
        """GPUs of one replica."""
        return self.parts * self.data_parallel


@dataclass(frozen=True)
class Policy:
    """A policy on a pool."""

    name: str
    model: ModelSize
    serving: Serving
    training: Training | None
    """None: frozen."""

    pool: str = "shared"
    engines: str | None = None
    """The pool that serves it; None: `pool`."""

    receives: bool = False
    """Its engines get weights from another pool, while they serve. They never sleep."""

    section: str = SECTION
    """Where a command sets what is the policy's own."""

    notes: tuple[str, ...] = ()
    """What the formulas leave out."""

    path: str = ""
    """model.path."""

    source: str = ""
    """Where the model's numbers are from."""

    def at(self, pool: str) -> Policy:
        """What of it is on one of its pools."""
        if self.engines is None:
            return self
        if pool == self.engines:
            return replace(self, training=None, receives=True)
        return replace(self, serving=replace(self.serving, elsewhere=True))

    @property
    def context(self) -> int:
        """Tokens that the engine must be able to hold for one request."""
        return self.serving.context or self.model.context
