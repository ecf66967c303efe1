"""Engines that are not there, or that cannot serve a policy as it is configured."""

from __future__ import annotations

from wrong_configs.case import wrong

ROLLOUT = "actor_rollout_ref.rollout"

CASES = (
    wrong(f"{ROLLOUT}.name=transformer", "did you mean 'transformers'?"),
    wrong(f"{ROLLOUT}.data_parallel_size=2 trainer.n_gpus_per_node=2", "a replica of this engine is one process"),
    wrong(f"++{ROLLOUT}.engine_kwargs.transformers.cache_gib=0", "above 0"),
    wrong("actor_rollout_ref.hybrid_engine=false", "train and serve on the same GPUs"),
)
