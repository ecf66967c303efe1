"""The load of one policy on its GPUs, read from its configuration: the inputs of the formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.adapters import adapters, plain
from verl_mas.config.merge import SECTION, own_section
from verl_mas.config.placement import local_policies, placed, pool_shape, serving_pool
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.config.verl_settings import CRITIC_TOKENS, attention
from verl_mas.engines.facts import EngineMemory, facts_of
from verl_mas.engines.serving import cache_bytes
from verl_mas.planning.model import ModelSize
from verl_mas.planning.model_folder import size_in
from verl_mas.planning.path import FASTEST, FLASH, TrainingPath, by_rows, training_path

# Bytes by purpose, such as `weights`, `KV cache` or `Adam`.
Terms = Mapping[str, float]


@dataclass(frozen=True)
class TrainingLoad:
    """How verl trains a policy with FSDP."""

    shards: int  # Number of GPUs over which a parameter is sharded
    update_tokens: int  # Tokens of a micro batch of the update, per GPU
    log_prob_tokens: int  # Tokens of a micro batch of the log-probs, per GPU
    element: int = 4  # Bytes of a trained parameter: verl trains in float32
    fsdp2: bool = True
    param_offload: bool = False
    optimizer_offload: bool = False
    always_on_cpu: bool = False  # FSDP2's offload policy: parameters, gradients and Adam stay in host memory
    checkpointing: bool = True  # Gradient checkpointing
    by_tokens: bool = True  # Micro batches are filled up to a number of tokens (`use_dynamic_bsz`)
    path: TrainingPath = FASTEST  # The kernels of attention and log-probs
    images: float = 0.0  # The largest possible share of image tokens in a micro batch: only prompts have images
    reshard: bool = True  # A layer's gathered parameters are freed after its forward pass
    # Gradients are reduce-scattered only with the last micro batch. Until then every GPU has all gradients unsharded.
    sync_once: bool = False
    # Bytes per logit in the log-prob pass: 2, or 4 at a temperature other than 1, which makes a copy of the logits.
    logits: int = 2
    # Bytes per logit in the update, for the logits and their gradient. flash-attn's cross entropy writes the gradient
    # in place of the logits, unless entropy is in the loss. A copy of the logits has a gradient, too.
    logits_update: int = 4
    old_log_probs: float = 1.0  # Forward passes for old log-probs per training step
    skips: bool = False  # The update skips rows without an advantage
    shares: bool = False  # A prefix that several rows share is computed once
    adapter: int = 0  # Number of parameters of the policy's own LoRA adapter; 0: none
    # Number of parameters of each adapter on this policy. The policy is frozen; its adapters are trained in turn.
    adapters: tuple[int, ...] = ()
    reference: bool = False  # A second model for the KL term. verl keeps it in host memory.
    saved: frozenset[str] = frozenset(("model", "optimizer", "extra"))  # actor.checkpoint.save_contents
    critic: CriticLoad | None = None

    @property
    def lora(self) -> bool:
        return bool(self.adapter or self.adapters)

    @property
    def trained_element(self) -> int:
        """Bytes of a parameter with a gradient. Adapters on a base are in float32, whatever the base's dtype is."""
        return 4 if self.adapters else self.element

    def trained(self, model: ModelSize) -> int:
        """Number of parameters that have a gradient at one time."""
        return max(self.adapters, default=self.adapter) or model.parameters

    def resized(self, update: Callable[[int], int], log_prob: Callable[[int], int]) -> TrainingLoad:
        """Return the load with other micro batches. The functions map the present number of tokens to the new one."""
        critic = self.critic and replace(self.critic, training=self.critic.training.resized(update, log_prob))
        tokens, scored = update(self.update_tokens), log_prob(self.log_prob_tokens)
        return replace(self, update_tokens=tokens, log_prob_tokens=scored, critic=critic)


@dataclass(frozen=True)
class CriticLoad:
    """The critic of a policy. It is in the policy's processes, and is trained on the same rows."""

    model: ModelSize
    training: TrainingLoad


@dataclass(frozen=True)
class ServingLoad:
    """How an engine serves a policy."""

    engine: str
    # rollout.gpu_memory_utilization; None for an engine that does not reserve a share of the GPU.
    fraction: float | None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1

    graphs: bool = True  # CUDA graphs, which are kept while the engine sleeps
    bucket: int = 2 << 30  # Bytes of one bucket of a weight sync
    context: int | None = None  # rollout.max_model_len; None: the model's context
    row: int = 0  # Tokens of the longest prompt and response
    sequences: int = 256  # rollout.max_num_seqs
    sleeps: bool = True  # rollout.free_cache_engine
    cache: int | None = None  # Bytes of the KV cache on a GPU, if the engine's options set them
    adapter: bool = False  # It serves LoRA adapters next to the base weights, and keeps these while it sleeps
    ranks: int = 0  # Sum of the ranks of its adapter slots. Every slot has the rank of the largest adapter.
    # The engine is on another pool. This pool has only the policy's training processes, and no memory of the engine.
    elsewhere: bool = False

    @property
    def memory(self) -> EngineMemory:
        return facts_of(self.engine).memory or EngineMemory()

    @property
    def measures(self) -> bool:
        """Whether the engine measures the free memory of its GPUs when it starts."""
        return self.fraction is not None and self.cache is None

    @property
    def parts(self) -> int:
        """Number of GPUs over which the weights are sharded."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def replica(self) -> int:
        """Number of GPUs of one replica."""
        return self.parts * self.data_parallel


@dataclass(frozen=True)
class Policy:
    """A policy on a pool."""

    name: str
    model: ModelSize
    serving: ServingLoad
    training: TrainingLoad | None  # None: frozen
    pool: str = "shared"
    engines: str | None = None  # The pool that serves it; None: `pool`
    snapshot: bool = False  # Its engines get weights from a folder while they are awake
    receives: bool = False  # Its engines get weights from another pool, while they serve. They never sleep.
    section: str = SECTION  # The section in which a command sets this policy's own settings
    notes: tuple[str, ...] = ()  # Costs that the formulas ignore
    path: str = ""  # model.path
    source: str = ""  # Where the model's sizes were read
    rows: float = 0.0  # Rows per training step, including rows of the adapters on it
    updates: int = 1  # Optimiser steps per training step; with several adapters, the largest number
    trainers: int = 1  # GPUs of the pool that it trains on
    servers: int = 1  # GPUs of the pool that serves it
    cache: int = 0  # KV tokens of one engine

    def at(self, pool: str) -> Policy:
        """Return the part of the policy that is on one of its pools."""
        if self.engines is None:
            return self
        if pool == self.engines:
            return replace(self, training=None, receives=True)
        return replace(self, serving=replace(self.serving, elsewhere=True))

    @property
    def context(self) -> int:
        """Tokens that the engine must be able to hold for one request."""
        return self.serving.context or self.model.context


@dataclass(frozen=True)
class _View:
    """Values of `actor_rollout_ref` of one policy."""

    config: DictConfig

    def get(self, key: str) -> object:
        return OmegaConf.select(self.config, f"{SECTION}.{key}")

    def number(self, key: str, default: int) -> int:
        value = self.get(key)
        return int(value) if isinstance(value, int | float) else default

    def on(self, key: str) -> bool:
        return bool(self.get(key))


def read_policy(run: Run, name: str, model: ModelSize) -> Policy:
    """Read a policy whose engines the run starts, with the values that follow from its pool."""
    spec = run.mas.policies[name]
    values = _View(placed(run, name))
    served = replace(_serving(values), cache=cache_bytes(run.view(name)))
    training, on_base = None, adapters(run.mas, name)
    if spec.is_trained:
        training = _training(run, name, model)
        training = replace(training, critic=_critic(run, name, model, training))
    elif on_base:
        # The base's processes train its adapters one after another.
        each = [_training(run, adapter, model) for adapter in on_base]
        training = replace(
            each[0],
            adapter=0,
            adapters=tuple(one.adapter for one in each),
            logits=max(one.logits for one in each),
            logits_update=max(one.logits_update for one in each),
        )
        ranks = [int(run.view(adapter).value("model.lora_rank")) for adapter in on_base]
        slots = len(ranks) * max(ranks)
        served = replace(served, adapter=facts_of(served.engine).many_adapters, ranks=slots)
    alone = local_policies(run.mas) == [name] and not spec.overrides
    section = SECTION if alone else own_section(run.config, name)
    return Policy(
        name,
        model,
        served,
        training,
        spec.pool,
        spec.engines,
        snapshot=spec.snapshot is not None,
        section=section,
        notes=tuple(_notes(model, values)),
        updates=max(run.view(each).updates_per_step for each in on_base or [name]),
        trainers=sum(pool_shape(run, spec.pool)),
        servers=sum(pool_shape(run, serving_pool(run.mas, name))),
    )


def _temperatures(view: _View, mas: MasConfig, name: str) -> set[float]:
    """Temperatures at which the policy's rows are sampled."""
    swapped = {agent: mas.agents[agent].policy for agent in mas.swap.agents if agent in mas.agents}
    own = [
        spec.sampling.get("temperature")
        for agent, spec in mas.agents.items()
        if spec.policy == name or (agent in swapped and name in swapped.values())
    ]
    every = cast("float", view.get("rollout.temperature"))
    return {float(every if value is None else value) for value in [*own, *([] if own else [None])]}


def _training(run: Run, name: str, model: ModelSize) -> TrainingLoad:
    view, gpus, fsdp = _View(placed(run, name)), sum(pool_shape(run, run.mas.policies[name].pool)), "actor.fsdp_config"
    path, own = training_path(view.config), run.view(name)
    size = view.number(f"{fsdp}.fsdp_size", -1)
    copied = _temperatures(view, run.mas, name) != {1.0}
    # In the log-prob pass, entropy needs two more tensors of the logits' size if it is neither compiled nor chunked.
    # The update has the logits and their gradient. flash-attn's cross entropy writes the gradient in place. Entropy in
    # the loss adds one tensor of that size, and a temperature other than 1 adds two.
    whole = not view.on(f"{fsdp}.use_torch_compile") and not view.on(f"{fsdp}.entropy_from_logits_with_chunking")
    entropy = view.on("actor.calculate_entropy") or bool(view.get("actor.entropy_coeff"))
    in_place = path.log_probs == FLASH and not entropy
    rank = view.number("model.lora_rank", 0)
    return TrainingLoad(
        shards=size if 0 < size < gpus else gpus,
        update_tokens=_tokens(view, "actor.ppo_max_token_len_per_gpu", "actor.ppo_micro_batch_size_per_gpu"),
        log_prob_tokens=_tokens(
            view, "rollout.log_prob_max_token_len_per_gpu", "rollout.log_prob_micro_batch_size_per_gpu"
        ),
        element=2 if str(view.get(f"{fsdp}.model_dtype")) in ("bf16", "bfloat16", "fp16", "float16") else 4,
        fsdp2=view.get("actor.strategy") != "fsdp",
        param_offload=view.on(f"{fsdp}.param_offload"),
        optimizer_offload=view.on(f"{fsdp}.optimizer_offload"),
        always_on_cpu=view.get("actor.strategy") == "fsdp2" and view.on(f"{fsdp}.offload_policy"),
        checkpointing=view.on("model.enable_gradient_checkpointing"),
        by_tokens=view.on("actor.use_dynamic_bsz"),
        path=path,
        images=view.number("rollout.prompt_length", 0) / max(1, _row(view)) if model.vision else 0.0,
        reshard=view.on(f"{fsdp}.reshard_after_forward"),
        sync_once=view.on(f"{fsdp}.use_no_sync_for_gradient_accumulation"),
        logits=2 + 2 * copied + 4 * whole,
        logits_update=4 - 2 * in_place + 2 * entropy + 4 * copied,
        old_log_probs=own.old_log_prob_passes,
        skips=own.skips_zero_advantage,
        shares=own.shares_prefixes and by_rows(own) is None,
        adapter=rank * model.adapted(plain(view.get("model.target_modules")), plain(view.get("model.exclude_modules"))),
        # With LoRA the model without its adapter is the reference.
        reference=not rank and (view.on("actor.use_kl_loss") or bool(view.config.algorithm.get("use_kl_in_reward"))),
        saved=frozenset(cast("list[str]", view.get("actor.checkpoint.save_contents") or ())),
    )


def _critic(run: Run, name: str, model: ModelSize, own: TrainingLoad) -> CriticLoad | None:
    """Read the critic of a policy; None without critics. `model`, `own`: the policy's model and its training load."""
    if not run.critics:
        return None
    section, view = placed(run, name).critic, run.view(name)
    if view.critic_path != view.get("model.path"):
        model, _ = size_in(section.model, f"the critic of policy {name}: ")
    tensors = list(model.tensors)
    if not model.tied:
        tensors.remove(model.embedding)  # A value model outputs one number per token in place of logits.
    model = replace(model, tensors=tuple(tensors), tied=True)
    tokens = section.get("ppo_infer_max_token_len_per_gpu") or CRITIC_TOKENS
    load = replace(
        own,
        update_tokens=tokens,
        log_prob_tokens=tokens,
        element=4,
        fsdp2=section.strategy != "fsdp",
        param_offload=section.fsdp.param_offload,
        optimizer_offload=section.fsdp.optimizer_offload,
        always_on_cpu=section.strategy == "fsdp2" and section.fsdp.offload_policy,
        checkpointing=section.model.enable_gradient_checkpointing,
        by_tokens=True,
        path=replace(own.path, log_probs=FLASH),
        logits=0,  # A value model has no logits.
        logits_update=0,
        old_log_probs=1.0,
        skips=False,
        shares=False,
        adapter=0,
        reference=False,
        saved=frozenset(section.checkpoint.save_contents),
    )
    return CriticLoad(model, load)


def _tokens(view: _View, budget: str, micro: str) -> int:
    """Number of tokens of a micro batch on one GPU: the token budget, or a fixed number of longest rows."""
    if view.on("actor.use_dynamic_bsz"):
        return view.number(budget, 16384)
    return view.number(micro, 1) * _row(view) // view.number("actor.ulysses_sequence_parallel_size", 1)


def _row(view: _View) -> int:
    return view.number("rollout.prompt_length", 0) + view.number("rollout.response_length", 0)


def _serving(view: _View) -> ServingLoad:
    engine = str(view.get("rollout.name"))
    context = view.get("rollout.max_model_len")
    fraction = cast("float", view.get("rollout.gpu_memory_utilization"))
    lora = view.number("model.lora_rank", 0) > 0 and not view.on("model.lora.merge")
    return ServingLoad(
        engine=engine,
        fraction=float(fraction) if facts_of(engine).gpu_fraction else None,
        tensor_parallel=view.number("rollout.tensor_model_parallel_size", 1),
        pipeline_parallel=view.number("rollout.pipeline_model_parallel_size", 1),
        data_parallel=view.number("rollout.data_parallel_size", 1),
        graphs=not view.on("rollout.enforce_eager"),
        bucket=view.number("rollout.checkpoint_engine.update_weights_bucket_megabytes", 2048) << 20,
        context=context if isinstance(context, int) else None,
        row=_row(view),
        sequences=view.number("rollout.max_num_seqs", 256),
        sleeps=view.on("rollout.free_cache_engine"),
        adapter=lora and facts_of(engine).takes_adapters,
    )


def _notes(model: ModelSize, view: _View) -> Iterator[str]:
    strategy = view.get("actor.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        yield f"actor.strategy={strategy} is estimated as FSDP2"
    engine = str(view.get("rollout.name"))
    if facts_of(engine).memory is None:
        yield f"rollout.name={engine} is estimated as vLLM" + (
            "" if facts_of(engine).gpu_fraction else " without a fraction"
        )
    if view.get("rollout.quantization"):
        yield "rollout.quantization is left out: weights are estimated in bfloat16"
    if view.on("actor.use_dynamic_bsz") and not view.on("model.use_remove_padding"):
        yield "model.use_remove_padding=False: padding of short rows is left out"
    if attention(view.config) == "eager":
        yield "attn_implementation=eager: the scores of all pairs of tokens are left out"
    if model.tower and not model.vision:
        yield "the vision tower is not of Qwen's kind: its weights are counted, and not what it computes"
    elif model.vision:
        pixels = model.vision.pixels * view.number("rollout.prompt_length", 0) / 2**20
        yield f"images are estimated to fill prompts; {pixels:.0f} MiB of pixels per row on the host are left out"
