"""Wrong command lines for GPUs, written by one who had not read the checks: those that were accepted."""

from __future__ import annotations

from wrong_configs.case import Case, wrong

ROLLOUT, ACTOR, MODEL = (f"actor_rollout_ref.{part}" for part in ("rollout", "actor", "model"))
RAY = "ray_kwargs.ray_init"
ONE, TWO = "+recipe=math/shared trainer.n_gpus_per_node=8", "+recipe=math/separate trainer.n_gpus_per_node=8"
FLASH = f"{MODEL}.override_config.attn_implementation=flash_attention_2"


def on_gpus(arguments: str, says: str, team: str = ONE, *, warned: bool = False) -> Case:
    return wrong(f"{team} {arguments} --gpus 8x80", says, alone=True, warned=warned)


ENGINES = (
    on_gpus(f"++{ROLLOUT}.engine_kwargs.vllm.gpu_memory_utilization=0.9", "go by the second", TWO),
    on_gpus(
        f"{ROLLOUT}.name=sglang ++{ROLLOUT}.engine_kwargs.vllm.max_num_seqs=64",
        "its own options",
        warned=True,
    ),
    on_gpus(f"{ROLLOUT}.pipeline_model_parallel_size=2", "not implemented pipeline_model_parallel_size > 1"),
    on_gpus(f"{ROLLOUT}.expert_parallel_size=8", "expert_parallel_size must be equal to"),
    on_gpus(f"{ROLLOUT}.quantization=int4", "rollout.quantization"),
    on_gpus(f"{ROLLOUT}.prometheus.enable=true", "disable_log_stats=False"),
    on_gpus(f"{MODEL}.path=Qwen/Qwen2.5-7B-Instruct {ROLLOUT}.tensor_model_parallel_size=8", "28 attention heads"),
    on_gpus(f"{MODEL}.lora_rank=1024", "rank 512 at most"),
)
TRAINING = (
    on_gpus(f"{ACTOR}.fsdp_config.fsdp_size=3", "fsdp_size=3 on a pool of 8 GPUs"),
    on_gpus(f"{FLASH} {ACTOR}.ulysses_sequence_parallel_size=3", "ulysses_sequence_parallel_size=3 on a pool of 8"),
    on_gpus(
        f"{ACTOR}.use_kl_loss=true actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false",
        "ref.log_prob_micro_batch_size_per_gpu",
    ),
    on_gpus(f"{MODEL}.use_fused_kernels=true {MODEL}.fused_kernel_options.impl_backend=cuda", "impl_backend"),
    on_gpus(f"{ACTOR}.strategy=fsdp {ACTOR}.fsdp_config.offload_policy=true", "nothing is offloaded", warned=True),
)
RUN = (
    on_gpus(f"++{RAY}.num_gpus=4", "needs 8 GPUs, Ray has 4"),
    on_gpus(f"++{RAY}.runtime_env.env_vars.NCCL_DEBUG_LEVEL=1", "an environment variable is a text"),
    on_gpus("global_profiler.tool=torch global_profiler.steps=1", "global_profiler.steps"),
    on_gpus("trainer.device=cpu", "--gpus with trainer.device=cpu"),
)

CASES = (*ENGINES, *TRAINING, *RUN)
