"""Settings of verl's training engine with which a policy of a team cannot be updated, or would be wrongly."""

from __future__ import annotations

from wrong_configs.case import wrong

ACTOR, MODEL, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
ON_GPUS = "trainer.device=cuda ray_kwargs.ray_init.num_gpus=8 trainer.n_gpus_per_node=8"
BY_ROWS = f"{ACTOR}.use_dynamic_bsz=false"
SIZES = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4 {ROLLOUT}.log_prob_micro_batch_size_per_gpu=4"

CASES = (
    wrong(f"{ACTOR}.strategy=megatron", "teams are trained with verl's FSDP"),
    wrong(f"model_engine=megatron {ON_GPUS}", "leave out model_engine"),
    wrong("++mas.policies.main.overrides.actor.strategy=torchtitan", "teams are trained with verl's FSDP"),
    wrong(f"{BY_ROWS} {SIZES} {ACTOR}.ppo_micro_batch_size=8", "remove 'actor.ppo_micro_batch_size'"),
    wrong(
        f"{BY_ROWS} {ACTOR}.ppo_micro_batch_size=8 {ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
        f"set {ACTOR}.ppo_micro_batch_size_per_gpu=8, and remove {ACTOR}.ppo_micro_batch_size",
    ),
    wrong(
        f"{BY_ROWS} {SIZES} {ACTOR}.use_kl_loss=true actor_rollout_ref.ref.log_prob_micro_batch_size=8",
        "set actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    ),
    wrong(f"{BY_ROWS} {SIZES} {ACTOR}.use_kl_loss=true", "actor_rollout_ref.ref.log_prob_micro_batch_size"),
    wrong(f"{BY_ROWS} {SIZES} {ROLLOUT}.log_prob_use_dynamic_bsz=true", "one of the two for updates and log-probs"),
    wrong(
        f"{ACTOR}.ulysses_sequence_parallel_size=2 {MODEL}.use_remove_padding=true trainer.n_gpus_per_node=2",
        "attend to its own part of a sequence",
    ),
    wrong(
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=2",
        "a sequence without padding",
    ),
    wrong(f"{MODEL}.use_fused_kernels=true ++mas.agents.verifier.sampling.temperature=0.5", "at one temperature"),
    wrong(f"{ACTOR}.optim.optimizer=adam", "did you mean 'Adam'?"),
    wrong(f"{ACTOR}.optim.optimizer_impl=torch.optimizer", "cannot be imported"),
    wrong(f"{MODEL}.override_config.attn_implementation=sdpaa", "flash_attention_2"),
    wrong(f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=single", "float32"),
    wrong("reward.reward_manager.name=naiv", "did you mean 'naive'?"),
    wrong("reward.custom_reward_function.path=null", "has no rule for this one"),
)
