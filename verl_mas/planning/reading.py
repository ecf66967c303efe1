"""The inputs of the formulas, from the configuration of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.adapters import Targets, adapters, plain
from verl_mas.config.attention import attention, is_flash
from verl_mas.config.merge import SECTION, own_section
from verl_mas.config.placement import local_policies, placed, pool_shape
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.engines.facts import facts_of
from verl_mas.planning.load import Policy, Serving, Training
from verl_mas.planning.model import ModelSize

FSDP = ("fsdp", "fsdp2")


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

    def targets(self, key: str) -> Targets:
        return plain(self.get(key))


def read_policy(run: Run, name: str, model: ModelSize) -> Policy:
    """A policy that is served here, with what follows from its pool."""
    spec = run.mas.policies[name]
    values = _View(placed(run, name))
    served = _serving(values)
    training, on_base = None, adapters(run.mas, name)
    if spec.is_trained:
        training = _training(
            values, model, sum(pool_shape(run, spec.pool)), temperatures=_temperatures(values, run.mas, name)
        )
    elif on_base:
        training = _shared(run, model, on_base)
        ranks = [int(run.view(adapter).value("model.lora_rank")) for adapter in on_base]
        slots = len(ranks) * max(ranks)
        served = replace(served, adapter=facts_of(served.engine).many_adapters, ranks=slots)
    alone = local_policies(run.mas) == [name] and not spec.overrides
    section = SECTION if alone else own_section(run.config, name)
    return Policy(name, model, served, training, spec.pool, spec.engines, section=section, notes=tuple(_notes(values)))


def _shared(run: Run, model: ModelSize, on_base: list[str]) -> Training:
    """Of the adapters on a base: one after another, in its processes."""
    each = []
    for name in on_base:
        values, gpus = _View(placed(run, name)), sum(pool_shape(run, run.mas.policies[name].pool))
        each.append(_training(values, model, gpus, temperatures=_temperatures(values, run.mas, name)))
    return replace(
        each[0],
        adapter=0,
        adapters=tuple(one.adapter for one in each),
        logits=max(one.logits for one in each),
        logits_update=max(one.logits_update for one in each),
    )


def _temperatures(view: _View, mas: MasConfig, name: str) -> set[float]:
    """Of the policy's rows."""
    swapped = {agent: mas.agents[agent].policy for agent in mas.swap.agents if agent in mas.agents}
    own = [
        spec.sampling.get("temperature")
        for agent, spec in mas.agents.items()
        if spec.policy == name or (agent in swapped and name in swapped.values())
    ]
    every = cast("float", view.get("rollout.temperature"))
    return {float(every if value is None else value) for value in [*own, *([] if own else [None])]}


def _training(view: _View, model: ModelSize, gpus: int, *, temperatures: set[float]) -> Training:
    fsdp = "actor.fsdp_config"
    size = view.number(f"{fsdp}.fsdp_size", -1)
    copied = temperatures != {1.0}
    rank = view.number("model.lora_rank", 0)
    return Training(
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
        masked=view.on("model.use_remove_padding") and not is_flash(attention(view.config)),
        reshard=view.on(f"{fsdp}.reshard_after_forward"),
        sync_once=view.on(f"{fsdp}.use_no_sync_for_gradient_accumulation"),
        logits=_logits(view, copied=copied),
        logits_update=_logits_of_update(view, copied=copied),
        adapter=rank * model.adapted(view.targets("model.target_modules"), view.targets("model.exclude_modules")),
        # With LoRA the model without its adapter is the reference.
        reference=not rank and (view.on("actor.use_kl_loss") or bool(view.config.algorithm.get("use_kl_in_reward"))),
        saved=frozenset(cast("list[str]", view.get("actor.checkpoint.save_contents") or ())),
    )


def _tokens(view: _View, budget: str, micro: str) -> int:
    """Tokens of a micro batch on one GPU."""
    if view.on("actor.use_dynamic_bsz"):
        return view.number(budget, 16384)
    return view.number(micro, 1) * _row(view) // view.number("actor.ulysses_sequence_parallel_size", 1)


def _row(view: _View) -> int:
    return view.number("rollout.prompt_length", 0) + view.number("rollout.response_length", 0)


def _logits(view: _View, *, copied: bool) -> int:
    """Bytes per logit of the log-probs, in bfloat16. Entropy needs two more tensors where it is not compiled."""
    fsdp = "actor.fsdp_config"
    if view.on("model.use_fused_kernels"):
        return 0
    whole = not view.on(f"{fsdp}.use_torch_compile") and not view.on(f"{fsdp}.entropy_from_logits_with_chunking")
    return 2 + 2 * copied + 4 * whole


def _logits_of_update(view: _View, *, copied: bool) -> int:
    """Logits and gradient. Without flash-attn's cross entropy, with entropy in the loss, and at a temperature other
    than 1 there are more tensors of that size."""
    if view.on("model.use_fused_kernels"):
        return 0
    entropy = view.on("actor.calculate_entropy") or bool(view.get("actor.entropy_coeff"))
    return 4 + 2 * (not is_flash(attention(view.config))) + 2 * entropy + 4 * copied


def _serving(view: _View) -> Serving:
    engine = str(view.get("rollout.name"))
    context = view.get("rollout.max_model_len")
    fraction = cast("float", view.get("rollout.gpu_memory_utilization"))
    lora = view.number("model.lora_rank", 0) > 0 and not view.on("model.lora.merge")
    return Serving(
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


def _notes(view: _View) -> Iterator[str]:
    strategy = view.get("actor.strategy")
    if strategy not in FSDP:
        yield f"actor.strategy={strategy} is estimated as FSDP2"
    engine = str(view.get("rollout.name"))
    if engine not in ("vllm", "sglang"):
        yield f"rollout.name={engine} is estimated as vLLM" + (
            "" if facts_of(engine).gpu_fraction else " without a fraction"
        )
    if view.get("rollout.quantization"):
        yield "rollout.quantization is left out: weights are estimated in bfloat16"
    if not view.on("model.use_remove_padding"):
        yield "model.use_remove_padding=False: padding of short rows is left out"
    if attention(view.config) == "eager":
        yield "attn_implementation=eager: the scores of all pairs of tokens are left out"
