"""A name that is none of the setting's choices."""

from __future__ import annotations

from wrong_configs.case import wrong

ACTOR, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout"))
OVERRIDES = "++mas.policies.main.overrides"

CASES = (
    wrong(f"{ACTOR}.strategy=bogus", "known: automodel, fsdp, fsdp2"),
    wrong(f"{ACTOR}.strategy=fdsp", "did you mean 'fsdp'?"),
    wrong(f"{ACTOR}.policy_loss.loss_mode=bogus", "vanilla"),
    wrong(f"{ACTOR}.policy_loss.loss_mode=clip-cov", "did you mean 'clip_cov'?"),
    wrong(f"{ACTOR}.kl_loss_type=bogus", "low_var_kl"),
    wrong(f"{ACTOR}.loss_agg_mode=token", "token-mean"),
    wrong(f"{ACTOR}.optim.lr_scheduler_type=linnear", "did you mean 'linear'?"),
    wrong(f"{ACTOR}.checkpoint.save_contents=[model,optimiser]", "optimizer"),
    wrong(f"{ACTOR}.fsdp_config.model_dtype=float8", "bfloat16"),
    wrong(f"{ROLLOUT}.name=vlm", "did you mean 'vllm'?"),
    wrong(f"{ROLLOUT}.name=5", f"{ROLLOUT}.name is text"),
    wrong(f"{ROLLOUT}.mode=sync", f"{ROLLOUT}.mode is async"),
    wrong(f"{ROLLOUT}.dtype=float8", "bfloat16"),
    wrong(f"{ROLLOUT}.load_format=bogus", "safetensors"),
    wrong(f"{ROLLOUT}.scheduling_policy=random", "fcfs"),
    wrong("trainer.device=quantum", "cuda"),
    wrong("trainer.logger=[console,bogus]", "tensorboard"),
    wrong("trainer.logger=consol", "console"),
    wrong("trainer.resume_mode=bogus", "resume_path"),
    wrong("trainer.v1.sampler.max_off_policy_strategy=bogus", "drop"),
    wrong("transfer_queue.backend.storage_backend=Bogus", "SimpleStorage"),
    wrong("data.truncation=top", "left"),
    wrong("algorithm.kl_ctrl.type=fix", "did you mean 'fixed'?"),
    wrong("algorithm.rollout_correction.rollout_is=word", "sequence"),
    wrong("algorithm.rollout_correction.loss_type=bogus", "ppo_clip"),
    wrong("reward.reward_manager.source=bogus", "register"),
    wrong(f"{OVERRIDES}.actor.strategy=bogus", "known: automodel, fsdp, fsdp2"),
    wrong(f"{OVERRIDES}.actor.policy_loss.loss_mode=bogus", "vanilla"),
    wrong(f"{OVERRIDES}.rollout.dtype=float8", "bfloat16"),
    wrong(f"{OVERRIDES}.rollout.name=vlm", "did you mean 'vllm'?"),
    wrong("mas.reward.preset=drmas", "did you mean 'dr_mas'?"),
    wrong("mas.reward.penalty_on=group", "session"),
    wrong("mas.faults.then=stop", "drop_session"),
    wrong("mas.branch.commit=best", "greedy"),
    wrong("++mas.pools.shared.serving=turns", "phases"),
    wrong("++mas.agents.solver.truncation=end", "drop_oldest"),
)
