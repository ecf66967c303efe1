from __future__ import annotations

from verl_mas.checks.team import validate


def test_replicas_that_divide_the_gpus_of_a_pool_and_take_turns_are_accepted(two):
    engine = {"name": "vllm", "tensor_model_parallel_size": 2, "gpu_memory_utilization": 0.6, "free_cache_engine": True}
    pool = {"n_gpus_per_node": 4, "serving": "phases"}
    settings = {f"actor_rollout_ref__rollout__{key}": value for key, value in engine.items()}
    validate(two(mas__pools__shared=pool, ray_kwargs__ray_init__num_gpus=4, **settings))
