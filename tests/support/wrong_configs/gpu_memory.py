"""Class: what does not fit on the GPUs of a run."""

from __future__ import annotations

from wrong_configs.case import wrong

# A run on GPUs that are not here, of the shipped recipes.
SEPARATE = "+recipe=math/separate actor_rollout_ref.rollout.name=vllm"
SHARED = "+recipe=math/shared actor_rollout_ref.rollout.name=vllm"
FRACTION = "actor_rollout_ref.rollout.gpu_memory_utilization"
TOGETHER = "++mas.pools.shared.serving=together"
PHASES = "++mas.pools.shared.serving=phases"

CASES = [
    wrong(f"{SEPARATE} {FRACTION}=0.5 {TOGETHER} --gpus 4x80", "add up to at most 0.85", alone=True),
    wrong(f"{SEPARATE} {FRACTION}=0.43 {TOGETHER} --gpus 4x80", "= 0.86", alone=True),
    wrong(f"{SEPARATE} {FRACTION}=0.9 {PHASES} --gpus 4x80", "served in phases", alone=True),
    wrong(f"{SHARED} {FRACTION}=0.95 --gpus 4x80", "at most 0.92 of the card, 72.9 GiB", alone=True),
    wrong(f"{SHARED} {FRACTION}=0.12 --gpus 4x80", "the KV cache of vllm holds", alone=True),
    wrong(f"{SHARED} actor_rollout_ref.model.path=Qwen/Qwen3-32B --gpus 4x40", "GiB per GPU", alone=True),
    wrong(
        f"{SHARED} actor_rollout_ref.actor.ppo_max_token_len_per_gpu=200000 --gpus 4x80", "update of main", alone=True
    ),
    wrong(f"{SHARED} trainer.n_gpus_per_node=8 --gpus 4x80", "8 GPUs per node, --gpus has 4", alone=True),
    wrong(f"{SHARED} trainer.nnodes=2 --gpus 1x4x80", "--gpus has 4", alone=True),
    wrong(f"{SEPARATE} --gpus 4x80 --host-gib 64", "GiB of host memory", alone=True),
    wrong(
        f"{SHARED} actor_rollout_ref.rollout.max_model_len=50000 --gpus 4x80", "a context of 40960 tokens", alone=True
    ),
    wrong(f"{SHARED} actor_rollout_ref.model.path=owner/model --gpus 4x80", "is not known", warned=True, alone=True),
    wrong("--gpus 8x", "write --gpus 8x80"),
    wrong("--gpus 1x80", "remove +platform=cpu"),
    wrong("--host-gib 64", "add --gpus 8x80"),
]
