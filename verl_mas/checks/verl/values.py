"""What verl's own settings take, where verl declares no type, range or choice and would fail late or not at all.

Plain data; a function stands for choices that verl has in a registry. Other settings are checked by the type that
verl declares, or that its YAML shows.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from verl_mas.config.values import (
    Above,
    Below,
    Count,
    Hint,
    Length,
    NotNegative,
    Penalty,
    Positive,
    Range,
    Share,
    Temperature,
    Text,
    ValueRule,
)
from verl_mas.config.verl_settings import verl_settings
from verl_mas.verl_.sources import find, source_of


@dataclass(frozen=True)
class Form(ValueRule):
    """Of a text."""

    means: str
    fits: Callable[[str], bool]

    def holds(self, value: str) -> bool:
        return self.fits(value)

    def __str__(self) -> str:
        return self.means


def _bounds(value: str) -> bool:
    low, _, high = value.rpartition("_")
    try:
        return 0 <= float(low or 0) < float(high) < float("inf")
    except ValueError:
        return False


# Choices in verl's sources are found without importing verl, which takes seconds. A plugin of verl may add others.


def losses(value: object) -> Hint:
    calls = re.findall(r'@register_policy_loss\("(\w+)"\)', source_of("verl.trainer.ppo.core_algos"))
    if value in calls:
        return one_of(calls)
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    return one_of(POLICY_LOSS_REGISTRY)


def loggers(value: object) -> Hint:
    listed = find("verl.utils.tracking:Tracking.supported_backend")
    names = ast.literal_eval(listed.node.value) if listed and isinstance(listed.node, ast.Assign) else []
    if any(each not in names for each in (value if isinstance(value, list) else [value])):
        from verl.utils.tracking import Tracking

        names = Tracking.supported_backend
    name = one_of(names)
    return name | list[name]  # type: ignore[valid-type]


def devices(value: object) -> Hint:
    names = ["cuda", "npu", "cpu"]
    if value not in names:
        from verl.plugin.platform.platform_manager import PlatformRegistry

        names += PlatformRegistry.registered_names()
    return one_of(dict.fromkeys(names))


def storages(value: object) -> Hint:
    backends = verl_settings().yaml["transfer_queue"]["backend"]  # type: ignore[index]
    return one_of(name for name in backends if name != "storage_backend")


def one_of(names: Iterable[str]) -> Hint:
    return Literal[tuple(names)]


Whole = Annotated[int, Range(0)]
AllOr = Literal[-1] | Count  # -1: all, or never
Every = Annotated[int, Range(-1)]
Probability = Annotated[float, Above(0), Range(high=1)]
Momentum = Annotated[float, Range(0), Below(1)]
# A part of a path that must stay below the folder that it is added to.
INSIDE = "a name, not a path that leaves the folder of the project (no '..', no leading '/')"
_inside = Form(INSIDE, lambda value: value[:1] != "/" and ".." not in value.split("/"))
Name = Annotated[str, Length(1), _inside] | None
Names = str | list[str] | None
# Of transformers, or a kernel of the hub, which is named by its repository.
Attention = (
    Literal["eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4"]
    | Annotated[str, Form("a repository of the hub, owner/name", lambda value: "/" in value)]
)
Precision = Literal["fp16", "float16", "bf16", "bfloat16", "fp32", "float32"]
Contents = list[Literal["model", "optimizer", "extra", "hf_model"]]
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
# Of vLLM and SGLang; the embedded engine reads the model's own files with any of them.
_FORMATS = (
    "auto dummy safetensors pt npcache fastsafetensors tensorizer runai_streamer runai_streamer_sharded bitsandbytes "
    "sharded_state gguf mistral layered remote remote_instance flash_rl jax rdma instanttensor hf"
).split()

_OPTIM: Mapping[str, Hint] = {
    "lr": Annotated[float, Range(0, 10)],
    "weight_decay": NotNegative,
    "betas": tuple[Momentum, Momentum],
    "clip_grad": Positive,
    "lr_warmup_steps_ratio": Share,
    "lr_warmup_steps": Every | None,
    "min_lr_ratio": Share | None,
    "num_cycles": NotNegative,
    "lr_scheduler_type": Literal["constant", "cosine", "linear", "inverse-square-root", "WSD"],
}
_FSDP: Mapping[str, Hint] = {
    "dtype": Precision,
    "model_dtype": Precision,
    "mixed_precision.param_dtype": Precision,
    "mixed_precision.reduce_dtype": Precision,
    "mixed_precision.buffer_dtype": Precision,
    "fsdp_size": AllOr,
    "ulysses_sequence_parallel_size": Count,
    "pad_to_length_bucket": Count,
    "entropy_from_logits_chunk_size": Count,
}
_LOG_PROB: Mapping[str, Hint] = {
    "log_prob_micro_batch_size": Count | None,
    "log_prob_micro_batch_size_per_gpu": Count | None,
    "log_prob_max_token_len_per_gpu": Count,
}
_SAMPLING: Mapping[str, Hint] = {"temperature": Temperature, "top_k": AllOr, "top_p": Probability, "n": Count}

_SECTIONS: Mapping[str, Mapping[str, Hint | Callable[[object], Hint]]] = {
    "actor_rollout_ref": {"nccl_timeout": Count},
    "actor_rollout_ref.actor": {
        "strategy": Literal["fsdp", "fsdp2", "fsdp_turbo", "megatron", "veomni", "torchtitan", "automodel"],
        "ppo_mini_batch_size": Count,
        "ppo_micro_batch_size": Count | None,
        "ppo_micro_batch_size_per_gpu": Count | None,
        "ppo_max_token_len_per_gpu": Count,
        "ppo_epochs": Count,
        "clip_ratio": NotNegative,
        "clip_ratio_low": NotNegative,
        "clip_ratio_high": NotNegative,
        "clip_ratio_c": Annotated[float, Above(1)],
        "loss_agg_mode": Literal[
            "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
        ],
        "loss_scale_factor": Positive | None,
        "policy_loss.loss_mode": losses,
        "policy_loss.clip_cov_ratio": Positive | None,
        "policy_loss.kl_cov_ratio": Positive | None,
        "policy_loss.dro_beta": Positive | None,
        "kl_loss_coef": NotNegative,
        "kl_loss_type": Literal[(*_KL, *(f"{name}+" for name in _KL))],
        "grad_clip": Positive,
        "ulysses_sequence_parallel_size": Count,
        "checkpoint.save_contents": Contents,
        "checkpoint.load_contents": Contents,
        **{f"optim.{key}": hint for key, hint in _OPTIM.items()},
        **{f"fsdp_config.{key}": hint for key, hint in _FSDP.items()},
    },
    "actor_rollout_ref.ref": {**_LOG_PROB, **{f"fsdp_config.{key}": hint for key, hint in _FSDP.items()}},
    "actor_rollout_ref.rollout": {
        **_LOG_PROB,
        **_SAMPLING,
        **{f"val_kwargs.{key}": hint for key, hint in _SAMPLING.items()},
        "name": Text,
        "mode": Literal["async"],
        "dtype": Literal["auto", "half", "float", "float16", "bfloat16", "float32", "fp16", "bf16", "fp32"],
        "load_format": one_of(_FORMATS),
        "gpu_memory_utilization": Probability,
        "tensor_model_parallel_size": Count,
        "data_parallel_size": Count,
        "pipeline_model_parallel_size": Count,
        "expert_parallel_size": Count,
        "max_num_batched_tokens": Count,
        "max_num_seqs": Count,
        "max_model_len": Count | None,
        "prompt_length": Count,
        "response_length": Count,
        "repetition_penalty": Penalty,
        "scheduling_policy": Literal["fcfs", "priority"],
        "over_sample_rate": Share,
        "agent.num_workers": Count,
        "checkpoint_engine.update_weights_bucket_megabytes": Count,
        "quantization": Literal["fp8", "torchao", "ascend"] | None,
        "prometheus.port": Annotated[int, Range(1, 65535)],
        "multi_turn.max_assistant_turns": Count | None,
        "multi_turn.max_user_turns": Count | None,
        "multi_turn.max_parallel_calls": Count,
        "multi_turn.max_tool_response_length": Count,
        "multi_turn.tool_response_truncate_side": Literal["left", "middle", "right"],
    },
    "actor_rollout_ref.model": {
        "path": Text,
        "override_config.attn_implementation": Attention,
        "fused_kernel_options.impl_backend": Literal["torch", "triton", "liger"],
        "external_lib": Names,
        "lora_rank": Whole,
        "lora_alpha": Count,
        "target_modules": Names,
        "exclude_modules": Names,
        "lora.rank": Whole,
        "lora.alpha": Count,
        "lora.dropout": Share,
    },
    "algorithm": {
        "adv_estimator": Text,
        "gamma": Share,
        "lam": Share,
        "kl_penalty": Literal[(*_KL, *(f"{name}+" for name in _KL))],
        "kl_ctrl.type": Literal["fixed", "adaptive"],
        "kl_ctrl.kl_coef": NotNegative,
        "kl_ctrl.horizon": Count,
        "rollout_correction.rollout_is": Literal["token", "sequence"] | None,
        "rollout_correction.rollout_is_threshold": Positive
        | Annotated[str, Form("a number above 0, or two as in 0.5_5.0, the lower one first", _bounds)],
        "rollout_correction.loss_type": Literal["ppo_clip", "reinforce"],
        "filter_groups.max_num_gen_batches": Whole,
        "filter_groups.max_inflight_gen_batches": Count,
    },
    "data": {
        "train_files": Names,
        "val_files": Names,
        "train_batch_size": Count,
        "gen_batch_size": Count | None,
        "val_batch_size": Count | None,
        "max_prompt_length": Count,
        "max_response_length": Count,
        "train_max_samples": AllOr,
        "val_max_samples": AllOr,
        "seed": int | None,
        "custom_cls.path": str | None,
        "custom_cls.name": str | None,
        "dataloader_num_workers": Whole,
        "filter_overlong_prompts_workers": Count | None,
        "truncation": Literal["left", "right", "middle", "error"],
    },
    "global_profiler": {
        "tool": Literal["npu", "nsys", "torch", "torch_memory", "precision_debugger"] | None,
        "steps": list[Count] | None,
    },
    "ray_kwargs.ray_init": {"num_cpus": Whole | None, "num_gpus": Whole | None, "address": Text | None},
    "reward": {
        "num_workers": Count,
        "custom_reward_function.path": str | None,
        "reward_manager.source": Literal["register", "importlib"],
        "reward_model.nnodes": Whole,
        "reward_model.n_gpus_per_node": Whole,
        "sandbox_fusion.max_concurrent": Count,
        "sandbox_fusion.memory_limit_mb": Count,
    },
    "trainer": {
        "nnodes": Count,
        "n_gpus_per_node": Count,
        "total_epochs": Count,
        "total_training_steps": Count | None,
        "save_freq": Every,
        "test_freq": Every,
        "max_actor_ckpt_to_keep": Count | None,
        "max_critic_ckpt_to_keep": Count | None,
        "critic_warmup": Whole,
        "log_val_generations": Whole,
        "esi_redundant_time": NotNegative,
        "ray_wait_register_center_timeout": Positive,
        "resume_mode": Literal["auto", "disable", "resume_path"],
        "resume_from_path": Text | None,
        "default_hdfs_dir": str | None,
        "device": devices,
        "logger": loggers,
        "project_name": Name,
        "experiment_name": Name,
        "v1.colocate_async.num_warmup_batches": NotNegative,
        "v1.separate_async.num_warmup_batches": NotNegative,
        "v1.sampler.max_off_policy_strategy": Literal["drop", "wait"],
        "v1.sampler.max_off_policy_threshold": Whole | None,
    },
    "transfer_queue": {
        "backend.storage_backend": storages,
        "backend.SimpleStorage.num_data_storage_units": Count,
        "backend.SimpleStorage.total_storage_size": Count | None,
        "metrics.port": Annotated[int, Range(0, 65535)],
    },
}
VALUES = {f"{section}.{key}": hint for section, keys in _SECTIONS.items() for key, hint in keys.items()}
# Settings with more than one line of text.
LINES: Sequence[str] = ("custom_chat_template", "system_prompt", "chat_template_kwargs", ".stop", "mas.workflow.args")


def takes(path: str, value: object = None) -> Hint | None:
    """What a setting of verl takes beyond its declared type. `value`: the one that is looked for among its choices."""
    hint = VALUES.get(path)
    return hint(value) if inspect.isfunction(hint) else hint
