"""Reads from the configuration how a policy uses its GPUs. The result is the input of the formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.adapters import adapters, plain
from verl_mas.config.merge import SECTION, own_section
from verl_mas.config.placement import local_policies, placed, pool_shape, serving_pool
from verl_mas.config.run import Run
from verl_mas.config.verl_settings import CRITIC_TOKENS, attention
from verl_mas.engines.facts import EngineMemory, facts_of
from verl_mas.engines.serving import cache_bytes
from verl_mas.planning.model import ModelSize
from verl_mas.planning.model_folder import size_in
from verl_mas.planning.path import FASTEST, FLASH, TrainingPath, by_rows, training_path
from verl_mas.util import Fields

T = TypeVar("T")
# Bytes by purpose, such as `weights`, `KV cache` or `Adam`.
Terms = Mapping[str, float]
HALF = ("bf16", "bfloat16", "fp16", "float16")  # names of the dtypes of two bytes, in verl's `model_dtype`


def setting(key: str, default: T) -> T:
    """Make a field with the value of a setting in the policy's section."""
    return field(default=default, metadata={"key": key})


@dataclass(frozen=True)
class Policy:
    """A policy on a pool: its model, how an engine serves it, and how verl trains it with FSDP."""

    name: str
    model: ModelSize
    engine: str
    # rollout.gpu_memory_utilization; None for an engine that does not reserve a share of the GPU.
    fraction: float | None
    pool: str = "shared"
    serving_pool: str | None = None  # The pool of its engines; None: `pool`
    section: str = SECTION  # The section in which a command sets this policy's own settings
    notes: tuple[str, ...] = ()  # Costs that the formulas ignore
    model_path: str = ""
    source: str = ""  # Where the model's sizes were read
    rows: float = 0.0  # Rows per training step, including rows of the adapters on it
    updates: int = 1  # Optimiser steps per training step; with several adapters, the largest number
    trainers: int = 1  # GPUs of the pool that it trains on
    servers: int = 1  # GPUs of the pool that serves it

    # -- its engines

    tensor_parallel: int = setting("rollout.tensor_model_parallel_size", 1)
    pipeline_parallel: int = setting("rollout.pipeline_model_parallel_size", 1)
    data_parallel: int = setting("rollout.data_parallel_size", 1)
    eager: bool = setting("rollout.enforce_eager", False)  # Without CUDA graphs, which are kept while the engine sleeps
    bucket: int = 2 << 30  # Bytes of one bucket of a weight sync
    max_model_len: int | None = None  # None: the model's context
    row: int = 0  # Tokens of the longest prompt and response
    sequences: int = setting("rollout.max_num_seqs", 256)
    sleeps: bool = setting("rollout.free_cache_engine", True)
    cache_bytes: int | None = None  # Bytes of the KV cache on a GPU, if the engine's options set them
    kv_tokens: int = 0  # KV tokens of one engine
    # Its engine adds adapters to base weights. Some engines keep the base weights while they sleep.
    serves_adapters: bool = False
    ranks: int = 0  # Sum of the ranks of its adapter slots. Every slot has the rank of the largest adapter.
    snapshot: bool = False  # Its engines get weights from a folder while they are awake
    receives: bool = False  # Its engines get weights from another pool, while they serve. They never sleep.
    # Its engine is on another pool, so this pool has only its training processes.
    elsewhere: bool = False

    # -- its training

    trains: bool = False  # False: frozen, without training processes
    shards: int = 1  # Number of GPUs over which a parameter is sharded
    update_tokens: int = 0  # Tokens of a micro batch of the update, per GPU
    log_prob_tokens: int = 0  # Tokens of a micro batch of the log-probs, per GPU
    element: int = 4  # Bytes of a trained parameter: by default verl trains in float32
    fsdp2: bool = True
    param_offload: bool = setting("actor.fsdp_config.param_offload", False)
    optimizer_offload: bool = setting("actor.fsdp_config.optimizer_offload", False)
    always_on_cpu: bool = False  # FSDP2's offload policy: parameters, gradients and Adam stay in host memory
    checkpointing: bool = setting("model.enable_gradient_checkpointing", True)
    by_tokens: bool = setting("actor.use_dynamic_bsz", True)  # Micro batches are filled up to a number of tokens
    path: TrainingPath = FASTEST  # The kernels of attention and log-probs
    images: float = 0.0  # The largest possible share of image tokens in a micro batch, as only prompts have images
    # A layer's gathered parameters are freed after its forward pass.
    reshard: bool = setting("actor.fsdp_config.reshard_after_forward", True)
    # Gradients are reduce-scattered only with the last micro batch. Until then every GPU has all gradients unsharded.
    sync_once: bool = setting("actor.fsdp_config.use_no_sync_for_gradient_accumulation", False)
    # Bytes per logit in the log-prob pass: 2, plus 2 at a temperature other than 1, which makes a copy of the logits,
    # plus 4 if entropy is neither compiled nor chunked.
    logits: int = 2
    # Bytes per logit in the update, for the logits and their gradient. flash-attn's cross entropy writes the gradient
    # in place of the logits, unless entropy is in the loss. At a temperature other than 1, the copy of the logits has a
    # gradient, too.
    logits_update: int = 4
    old_log_probs: float = 1.0  # Forward passes for old log-probs per training step
    skips: bool = False  # The update skips rows without an advantage
    shares: bool = False  # A prefix that several rows share is computed once
    adapter: int = 0  # Number of parameters of the policy's own LoRA adapter; 0: none
    # Number of parameters of each adapter on this policy. The policy is frozen; its adapters are trained in turn.
    adapters: tuple[int, ...] = ()
    reference: bool = False  # A second model for the KL term. verl keeps it in host memory.
    saved: frozenset[str] = frozenset(("model", "optimizer", "extra"))  # actor.checkpoint.save_contents
    # The value model in the policy's processes, which is trained on the same rows. Its engine fields have no meaning.
    critic: Policy | None = None

    @property
    def context(self) -> int:
        """Tokens that the engine must be able to hold for one request."""
        return self.max_model_len or self.model.context

    @property
    def memory(self) -> EngineMemory:
        return facts_of(self.engine).memory or EngineMemory()

    @property
    def measures(self) -> bool:
        """Whether the engine measures the free memory of its GPUs when it starts."""
        return self.fraction is not None and self.cache_bytes is None

    @property
    def parts(self) -> int:
        """Number of GPUs over which the engine's weights are sharded."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def replica(self) -> int:
        """Number of GPUs of one replica of the engine."""
        return self.parts * self.data_parallel

    @property
    def lora(self) -> bool:
        return bool(self.adapter or self.adapters)

    @property
    def trained_element(self) -> int:
        """Bytes of a parameter with a gradient. Adapters on a base are in float32, whatever the base's dtype is."""
        return 4 if self.adapters else self.element

    @property
    def trained(self) -> int:
        """Number of parameters that have a gradient at one time."""
        return max(self.adapters, default=self.adapter) or self.model.parameters

    def at(self, pool: str) -> Policy:
        """Return the part of the policy that is on one of its pools."""
        if self.serving_pool is None:
            return self
        if pool == self.serving_pool:
            return replace(self, trains=False, critic=None, receives=True)
        return replace(self, elsewhere=True)

    def resized(self, update: Callable[[int], int], log_prob: Callable[[int], int]) -> Policy:
        """Return the policy with other micro batches. The functions map the present number of tokens to the new one."""
        critic = self.critic and self.critic.resized(update, log_prob)
        tokens, scored = update(self.update_tokens), log_prob(self.log_prob_tokens)
        return replace(self, update_tokens=tokens, log_prob_tokens=scored, critic=critic)


def read_policy(run: Run, name: str, model: ModelSize, source: str = "") -> Policy:
    """Read a policy whose engines the run starts, with the settings that its pool determines."""
    on_base, policy = adapters(run.mas, name), replace(_served(run, name, model), source=source)
    if run.mas.policies[name].is_trained:
        policy = _trained(policy, run, name)
        return replace(policy, critic=_critic(policy, run)) if run.critics else policy
    if not on_base:
        return policy
    # The base's processes train its adapters one after another.
    each = [_trained(policy, run, adapter) for adapter in on_base]
    ranks = [int(run.view(adapter).value("model.lora_rank")) for adapter in on_base]
    return replace(
        each[0],
        adapter=0,
        adapters=tuple(one.adapter for one in each),
        logits=max(one.logits for one in each),
        logits_update=max(one.logits_update for one in each),
        updates=max(one.updates for one in each),
        serves_adapters=facts_of(policy.engine).many_adapters,
        ranks=len(ranks) * max(ranks),
    )


def _served(run: Run, name: str, model: ModelSize) -> Policy:
    """Read how a policy is served."""
    config, spec = placed(run, name), run.mas.policies[name]
    get, rollout = partial(OmegaConf.select, config[SECTION]), config[SECTION].rollout
    alone = local_policies(run.mas) == [name] and not spec.overrides
    facts, lora = facts_of(rollout.name), (get("model.lora_rank") or 0) > 0 and not get("model.lora.merge")
    policy = Policy(
        name=name,
        model=model,
        engine=rollout.name,
        fraction=float(rollout.gpu_memory_utilization) if facts.gpu_fraction else None,
        pool=spec.pool,
        serving_pool=spec.engines,
        section=SECTION if alone else own_section(run.config, name),
        notes=tuple(_notes(model, config)),
        model_path=str(get("model.path")),
        updates=run.view(name).updates_per_step,
        trainers=sum(pool_shape(run, spec.pool)),
        servers=sum(pool_shape(run, serving_pool(run.mas, name))),
        bucket=rollout.checkpoint_engine.update_weights_bucket_megabytes << 20,
        max_model_len=rollout.max_model_len,
        row=rollout.prompt_length + rollout.response_length,
        cache_bytes=cache_bytes(run.view(name)),
        serves_adapters=lora and facts.takes_adapters,
        snapshot=spec.snapshot is not None,
    )
    return _with_settings(policy, config[SECTION], "rollout.")


def _with_settings(policy: Policy, section: DictConfig, *parts: str) -> Policy:
    """Read the fields that `setting` made and whose keys begin with one of `parts`. A missing setting, such as a
    setting of FSDP under another strategy, becomes False."""
    keys = {one.name: one.metadata["key"] for one in fields(Policy) if one.metadata}
    found = {name: OmegaConf.select(section, key) for name, key in keys.items() if key.startswith(parts)}
    known: Fields = {name: False if value is None else value for name, value in found.items()}
    return replace(policy, **known)


def _trained(policy: Policy, run: Run, name: str) -> Policy:
    """Add the training of a policy. `name`: the policy itself, or an adapter on it."""
    config, view, fsdp, model = placed(run, name), run.view(name), "actor.fsdp_config", policy.model
    get, path = partial(OmegaConf.select, config[SECTION]), training_path(config)
    copied = _temperatures(run, name) != {1.0}
    # In the log-prob pass, entropy needs two more tensors of the logits' size if it is neither compiled nor chunked.
    # The update has the logits and their gradient. flash-attn's cross entropy writes the gradient in place. Entropy in
    # the loss adds one tensor of that size, and a temperature other than 1 adds two.
    whole = not get(f"{fsdp}.use_torch_compile") and not get(f"{fsdp}.entropy_from_logits_with_chunking")
    entropy = bool(get("actor.calculate_entropy") or get("actor.entropy_coeff"))
    in_place = path.log_probs == FLASH and not entropy
    rank, size = get("model.lora_rank") or 0, get(f"{fsdp}.fsdp_size") or -1
    targets = plain(get("model.target_modules")), plain(get("model.exclude_modules"))
    return replace(
        _worker(policy, config[SECTION]),
        trains=True,
        updates=view.updates_per_step,
        shards=size if 0 < size < policy.trainers else policy.trainers,
        update_tokens=_tokens(config, policy.row, "actor.ppo"),
        log_prob_tokens=_tokens(config, policy.row, "rollout.log_prob"),
        path=path,
        images=get("rollout.prompt_length") / max(1, policy.row) if model.vision else 0.0,
        logits=2 + 2 * copied + 4 * whole,
        logits_update=4 - 2 * in_place + 2 * entropy + 4 * copied,
        old_log_probs=view.old_log_prob_passes,
        skips=view.skips_zero_advantage,
        shares=view.shares_prefixes and by_rows(view) is None,
        adapter=rank * model.adapted(*targets),
        # With LoRA, no second model is needed, because the model without its adapter is the reference.
        reference=not rank and bool(get("actor.use_kl_loss") or config.algorithm.get("use_kl_in_reward")),
    )


def _worker(policy: Policy, section: DictConfig) -> Policy:
    """Read how the training processes of an actor hold their model."""
    get = partial(OmegaConf.select, section)
    return replace(
        _with_settings(policy, section, "actor.", "model."),
        element=2 if str(get("actor.fsdp_config.model_dtype")) in HALF else 4,
        fsdp2=get("actor.strategy") != "fsdp",
        always_on_cpu=get("actor.strategy") == "fsdp2" and bool(get("actor.fsdp_config.offload_policy")),
        saved=frozenset(get("actor.checkpoint.save_contents") or ()),
    )


def _temperatures(run: Run, name: str) -> set[float]:
    """Temperatures at which the policy's rows are sampled."""
    mas, usual = run.mas, run.view(name).value("rollout.temperature")
    swapped = {agent: mas.agents[agent].policy for agent in mas.swap.agents if agent in mas.agents}
    own = [
        spec.sampling.get("temperature")
        for agent, spec in mas.agents.items()
        if spec.policy == name or (agent in swapped and name in swapped.values())
    ]
    return {float(usual if value is None else value) for value in own or [None]}


def _critic(policy: Policy, run: Run) -> Policy:
    """Read the critic of a policy, which has the policy's GPUs and rows."""
    view = run.view(policy.name)
    # Resolve interpolations while the section is part of the whole configuration.
    section = DictConfig(OmegaConf.to_container(placed(run, policy.name).critic, resolve=True))
    model = policy.model
    if view.critic_path != view.get("model.path"):
        model, _ = size_in(section.model, f"the critic of policy {policy.name}: ")
    tokens = section.get("ppo_infer_max_token_len_per_gpu") or CRITIC_TOKENS
    actor = {**section, "fsdp_config": section.fsdp, "use_dynamic_bsz": True}
    return replace(
        _worker(policy, OmegaConf.create({"actor": actor, "model": section.model})),
        model=model.as_value_model,
        update_tokens=tokens,
        log_prob_tokens=tokens,
        path=replace(policy.path, log_probs=FLASH),
        logits=0,
        logits_update=0,
        old_log_probs=1.0,
        skips=False,
        shares=False,
        adapter=0,
        reference=False,
    )


def _tokens(config: DictConfig, row: int, prefix: str) -> int:
    """Number of tokens of a micro batch on one GPU: the token budget, or a fixed number of rows of maximal length."""
    get = partial(OmegaConf.select, config[SECTION])
    if get("actor.use_dynamic_bsz"):
        return int(get(f"{prefix}_max_token_len_per_gpu"))
    rows = get(f"{prefix}_micro_batch_size_per_gpu") or 1
    return int(rows * row // (get("actor.ulysses_sequence_parallel_size") or 1))


def _notes(model: ModelSize, config: DictConfig) -> Iterator[str]:
    actor, rollout, engine = config[SECTION].actor, config[SECTION].rollout, config[SECTION].rollout.name
    if actor.strategy not in ("fsdp", "fsdp2"):
        yield f"actor.strategy={actor.strategy} is estimated as FSDP2"
    if facts_of(engine).memory is None:
        fraction = "" if facts_of(engine).gpu_fraction else " without a fraction"
        yield f"rollout.name={engine} is estimated as vLLM{fraction}"
    if rollout.get("quantization"):
        yield "rollout.quantization is left out: weights are estimated in bfloat16"
    if actor.use_dynamic_bsz and not config[SECTION].model.use_remove_padding:
        yield "model.use_remove_padding=False: padding of short rows is left out"
    if attention(config) == "eager":
        yield "attn_implementation=eager: the scores of all pairs of tokens are left out"
    if model.tower and not model.vision:
        yield "the vision tower is not of Qwen's kind: its weights are counted, and not what it computes"
    elif model.vision:
        pixels = model.vision.pixels * rollout.prompt_length / 2**20
        yield f"images are estimated to fill prompts; {pixels:.0f} MiB of pixels per row on the host are left out"
