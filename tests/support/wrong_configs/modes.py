"""What an asynchronous mode of a team cannot have: too stale, uncorrected, or where engines do not stop."""

from __future__ import annotations

from wrong_configs.case import Case, wrong

REF, V1 = "actor_rollout_ref", "trainer.v1"
SAMPLER, CORRECTION = f"{V1}.sampler", "algorithm.rollout_correction"
COLOCATED, SEPARATE = "+mas/mode=colocate_async", "+mas/mode=separate_async"
TWO = "mas.policies={a:{},b:{}} mas.agents={solver:{policy:a},verifier:{policy:b}}"
ENGINES = "++mas.policies.main.engines=serving ++mas.pools.serving.n_gpus_per_node=1"
BACKEND = f"{REF}.rollout.checkpoint_engine"


def colocated(arguments: str, says: str, **more: object) -> Case:
    return wrong(f"{COLOCATED} {arguments}", says, **more)


def separate(arguments: str, says: str, **more: object) -> Case:
    return wrong(f"{SEPARATE} {ENGINES} {arguments}", says, **more)


CASES = (
    wrong("+mas/mode=async", "known: colocate_async, separate_async, sync"),
    wrong(f"{V1}.trainer_mode=colocate_async", "verl's own asynchronous trainers know one policy and no agents"),
    wrong(f"{V1}.trainer_mode=separate_async", "add +mas/mode=separate_async"),
    wrong(
        f"+platform=cpu {COLOCATED} +recipe=math/shared", "put +mas/mode=<mode> after +mas= and +recipe=", alone=True
    ),
    wrong(f"{COLOCATED} +platform=cpu", "the command has no team", alone=True),
    # How stale rows may be.
    colocated(f"{V1}.colocate_async.num_warmup_batches=-1", "num_warmup_batches"),
    colocated(f"{V1}.colocate_async.num_warmup_batches=1.5", f"set {SAMPLER}.max_off_policy_threshold=3"),
    colocated(f"{V1}.colocate_async.num_warmup_batches=2", f"set {SAMPLER}.max_off_policy_threshold=3"),
    colocated(f"{SAMPLER}.max_off_policy_threshold=-1", "max_off_policy_threshold"),
    colocated(f"{SAMPLER}.max_off_policy_threshold=null", "no bound on how stale rows are"),
    colocated(f"{SAMPLER}.max_off_policy_strategy=drop", "tasks with the longest sessions are left out", warned=True),
    colocated("trainer.total_training_steps=1", "dispatched before its first step"),
    colocated("transfer_queue.backend.SimpleStorage.total_storage_size=64", "together 80"),
    # Correction.
    colocated(f"{REF}.rollout.calculate_log_probs=false {CORRECTION}.rollout_is=null", "calculate_log_probs=True"),
    colocated(f"{CORRECTION}.rollout_is=null", "did not write the text", warned=True),
    colocated(f"{CORRECTION}.rollout_is=null {SAMPLER}.max_off_policy_threshold=3", "above 2 rows are corrected"),
    colocated(f"{CORRECTION}.bypass_mode=true", "reads nothing else of the section"),
    colocated(
        f"{CORRECTION}.bypass_mode=true {CORRECTION}.rollout_is=null {CORRECTION}.loss_type=reinforce",
        "loss_type=ppo_clip",
    ),
    colocated(f"{REF}.rollout.top_p=0.9", "agent solver is trained with top_p=0.9"),
    colocated("++mas.agents.verifier.sampling.top_k=20", "++mas.agents.verifier.sampling.top_k=-1"),
    colocated(f"{TWO} ++mas.policies.a.rollout_correction.rollout_ist=token", "did you mean"),
    colocated(f"{TWO} ++mas.policies.a.rollout_correction.rollout_is=row", "mas.policies.a.rollout_correction"),
    colocated(
        "mas.policies={main:{},f:{trainable:false,rollout_correction:{rollout_is:token}}} mas.agents.verifier.policy=f",
        "so it is not trained",
        warned=True,
    ),
    # What does not stop and resume, or owns the sampling.
    colocated(f"{TWO} ++mas.pools.shared.serving=phases", "a phase ends only when no request runs"),
    colocated(f"{REF}.rollout.full_determinism=true", "no run repeats another"),
    colocated("algorithm.filter_groups.enable=true", "mas.filter.drop=uniform"),
    colocated(f"{SAMPLER}.custom_sampler.path=my.py", "remove trainer.v1.sampler.custom_sampler"),
    colocated("skip.rollout_tq.enable=true", "dispatched and trained on in different steps"),
    colocated(f"{REF}.rollout.disaggregation.enabled=true", "whole engines"),
    colocated(f"{REF}.actor.checkpoint.async_save=true", "complete only after every policy has been saved"),
    colocated("reward.reward_model.enable=true", "while the engines are awake"),
    colocated(
        "transfer_queue.backend.storage_backend=MooncakeStore trainer.save_freq=5", "saves those of SimpleStorage only"
    ),
    # Engines on GPUs of their own.
    colocated(ENGINES, "served on the GPUs that it trains on"),
    wrong(SEPARATE, "mas.policies.main.engines=null"),
    wrong(f"{SEPARATE} ++mas.policies.main.engines=servers", "mas.policies.main.engines=servers"),
    wrong(
        f"{SEPARATE} {ENGINES} ++mas.policies.f.remote.base_url=http://h/v1 ++mas.policies.f.remote.model=m "
        "++mas.policies.f.engines=serving mas.agents.verifier.policy=f",
        "of a policy that is not trained",
    ),
    wrong(
        f"{SEPARATE} mas.policies={{a:{{adapter_of:main}},b:{{adapter_of:main}}}} "
        f"mas.agents={{solver:{{policy:a}},verifier:{{policy:b}}}} {REF}.model.lora_rank=4",
        "never an adapter",
    ),
    separate(f"{V1}.separate_async.parameter_sync_step=4", "set trainer.v1.separate_async.parameter_sync_step=1"),
    separate(f"{V1}.separate_async.hybrid_rollout.enable_switch=true", "a team has several policies"),
    colocated(f"{REF}.hybrid_engine=false", "policies train and serve on the same GPUs"),
    separate(f"{BACKEND}.backend=naive", "it copies weights within a process"),
    separate(f"{BACKEND}.backend=nccl", "it sends weights between GPUs"),
    separate(f"++{BACKEND}.engine_kwargs.ray.group_name=mine", "so each policy has its own"),
    separate(f"{REF}.model.lora_rank=4", "verl #7495"),
)
