"""GPUs, batches, lengths and budgets that do not fit each other."""

from __future__ import annotations

from wrong_configs.case import wrong

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GPUS = "ray_kwargs.ray_init.num_gpus"
FIXED = (
    f"{ACTOR}.use_dynamic_bsz=false {ACTOR}.ppo_micro_batch_size_per_gpu=1 "
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"
)
POLICIES = "++mas.policies={main:{},b:{}} mas.agents.verifier.policy=b"

CASES = (
    wrong("data.train_batch_size=7", "a whole number of optimiser steps", warned=True),
    wrong("data.train_batch_size=100000", "256 rows in data.train_files"),
    wrong("mas.updates_per_step=64", "64 optimiser steps for 32 sessions"),
    wrong("++mas.policies.main.updates_per_step=33", "33 optimiser steps for 32 sessions"),
    wrong(f"{FIXED} {ACTOR}.ppo_mini_batch_size=16", "must be >= actor.ppo_mini_batch_size"),
    wrong(f"{FIXED} trainer.n_gpus_per_node=3", "must be divisible"),
    wrong(f"{ACTOR}.use_dynamic_bsz=false", "ppo_micro_batch_size"),
    wrong(f"{GPUS}=0", "needs 1 GPUs, Ray has 0"),
    wrong(f"trainer.n_gpus_per_node=4 {GPUS}=2", "needs 4 GPUs, Ray has 2"),
    wrong("ray_kwargs.ray_init.num_cpus=2", "Ray CPUs, Ray has 2"),
    wrong("transfer_queue.backend.SimpleStorage.num_data_storage_units=500", "Ray CPUs, Ray has 64"),
    wrong(f"{POLICIES} ++mas.pools={{big:{{n_gpus_per_node:8}}}} ++mas.policies.b.pool=big", "needs 9 GPUs"),
    wrong(f"{ROLLOUT}.name=vllm {ROLLOUT}.tensor_model_parallel_size=2", "divides the GPUs of the pool"),
    wrong(f"{ROLLOUT}.name=vllm {ROLLOUT}.tensor_model_parallel_size=3 trainer.n_gpus_per_node=4", "divides the GPUs"),
    wrong(
        f"{ROLLOUT}.pipeline_model_parallel_size=2 trainer.n_gpus_per_node=2", "a replica of this engine is one process"
    ),
    wrong(f"{POLICIES} {ROLLOUT}.name=vllm {ROLLOUT}.gpu_memory_utilization=0.6", "add up to at most 1"),
    wrong(f"{POLICIES} {ROLLOUT}.name=vllm ++mas.pools.shared.serving=phases", "each engine frees its memory"),
    wrong("data.max_prompt_length=1", "has 103 tokens, and 1 are allowed"),
    wrong("data.max_prompt_length=8000", "max_position_embeddings, 4096"),
    wrong(f"{ROLLOUT}.max_model_len=16", "rollout.max_model_len, 16"),
    wrong(f"{ROLLOUT}.max_model_len=8192", "a context of 4096 tokens (max_position_embeddings)"),
    wrong("++actor_rollout_ref.model.override_config.max_position_embeddings=512", "max_position_embeddings, 512"),
    wrong("++mas.policies.main.overrides.rollout.max_model_len=600", "rollout.max_model_len, 600"),
    wrong("++mas.policies.main.overrides.rollout.response_length=4000", "max_position_embeddings, 4096"),
    wrong(f"{ACTOR}.ppo_max_token_len_per_gpu=512", "a row has up to 1024 tokens"),
    wrong(f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1000", "a row has up to 1024 tokens"),
    wrong("++mas.policies.main.overrides.actor.ppo_max_token_len_per_gpu=100", "a row has up to 1024 tokens"),
    wrong(f"{ROLLOUT}.name=vllm {ROLLOUT}.max_num_seqs=10000", "at least one token"),
    wrong("++mas.agents.solver.max_prompt_length=9999", "is the limit of every row", warned=True),
    wrong(f"{ACTOR}.optim.lr_warmup_steps=100 trainer.total_training_steps=10", "has reached its value", warned=True),
    wrong(f"{ACTOR}.optim.lr=0", "computes updates that change nothing", warned=True),
    wrong("mas.faults.max_acts=1 mas.branch.validation_k=2", "every candidate is an act"),
    wrong(f"{ROLLOUT}.n=1000 data.train_batch_size=200", "200000 sessions", warned=True),
)
