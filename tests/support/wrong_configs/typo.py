"""Keys, groups and names with a letter too many, too few or wrong."""

from __future__ import annotations

from wrong_configs.case import wrong

AR = "actor_rollout_ref"

CASES = (
    # Groups and teams.
    wrong("+maz=solver_verifier", "did you mean mas?"),
    wrong("+platfrom=cpu", "did you mean platform?"),
    wrong("+nosuchgroup=x", "nosuchgroup is not a setting"),
    wrong("+platform=cpu +mas=solver_verifer", "did you mean 'solver_verifier'?", alone=True),
    wrong("+platform=gpu +mas=solver_verifier", "platform is one of the files", alone=True),
    wrong("+recipe=maths", "math"),
    wrong("--config-nam=ppo_trainer", "did you mean '--config-name'?"),
    wrong("--config-dir={folder}/nowhere", "it is a folder that exists"),
    wrong("--config-name=ppo_trianer", "use --config-name ppo_trainer"),
    # Keys of verl.
    wrong("data.train_batchsize=8", "did you mean data.train_batch_size"),
    wrong("+data.train_batchsize=8", "did you mean data.train_batch_size"),
    wrong("++data.train_batchsize=8", "did you mean data.train_batch_size"),
    wrong("~data.train_batchsize", "did you mean data.train_batch_size"),
    wrong("++dta.train_batch_size=8", "did you mean data?"),
    wrong("++train_batch_size=8", "did you mean data.train_batch_size"),
    wrong("++data.ppo_mini_batch_size=8", f"did you mean {AR}.actor.ppo_mini_batch_size"),
    wrong("++trainer.total_training_stepz=5", "did you mean trainer.total_training_steps"),
    wrong("++trainer.save_frequency=5", "trainer.save_freq"),
    wrong("++trainer.v1.trainer_mod=mas", "did you mean trainer.v1.trainer_mode"),
    wrong("++trainer.v1.sampler.max_offpolicy_threshold=1", "trainer.v1.sampler.max_off_policy_threshold"),
    wrong("++algorithm.rollout_correction.rollout_iss=token", "algorithm.rollout_correction.rollout_is"),
    wrong("++algorithm.adv_estimater=agent_grpo", "did you mean algorithm.adv_estimator"),
    wrong(f"++{AR}.actor.optim.learning_rate=1e-6", f"{AR}.actor.optim.learning_rate is not a setting"),
    wrong(f"++{AR}.actor.ppo_minibatch_size=8", f"did you mean {AR}.actor.ppo_mini_batch_size"),
    wrong(f"{AR}.actor.clipratio=0.2", f"{AR}.actor.clip_ratio"),
    wrong(f"++{AR}.rollout.tempreature=1", f"did you mean {AR}.rollout.temperature"),
    wrong(f"++{AR}.rollout.val_kwargs.top_pp=1", f"did you mean {AR}.rollout.val_kwargs.top_p"),
    wrong(f"++{AR}.rollout.agent.num_worker=1", f"did you mean {AR}.rollout.agent.num_workers"),
    wrong(f"++{AR}.rollout.engine_kwargs.transformers.threds=2", "did you mean 'threads'?"),
    wrong(f"++{AR}.rollout.engine_kwargs.transfomers.threads=2", "transformers"),
    wrong(f"++{AR}.model.lora_rnk=4", f"did you mean {AR}.model.lora_rank"),
    wrong("++reward.custom_reward_fn.path=reward.py", "did you mean reward.custom_reward_function"),
    wrong("++transfer_queue.backend.SimpleStorage.num_data_storage_unit=1", "num_data_storage_units"),
    wrong("++ray_kwargs.ray_init.num_cpu=8", "did you mean ray_kwargs.ray_init.num_cpus"),
    # Keys of the team.
    wrong("mas.workflw.name=single", "mas.workflow.name"),
    wrong("++mas.workflw.name=single", "did you mean 'workflow'?"),
    wrong("++mas.branch.kk=2", "known: commit, k,"),
    wrong("++mas.fault.retries=2", "did you mean 'faults'?"),
    wrong("++mas.agents.solver.samplng.temperature=1", "did you mean 'sampling'?"),
    wrong("++mas.agents.solvr.system_prompt=x", "solver"),
    wrong("++mas.policies.main.overides.actor.optim.lr=1e-6", "did you mean 'overrides'?"),
    wrong("++mas.policies.main.overrides.actor.optim.lrr=1e-6", "mas.policies.main.overrides.actor.optim.lr"),
    wrong("++mas.policies.main.overrides.aktor.optim.lr=1e-6", "mas.policies.main.overrides.actor"),
    wrong("++mas.policies.main.overrides.rollout.val_kwargs.tempreature=1", "rollout.val_kwargs.temperature"),
    wrong("++mas.pools.shared.n_gpu_per_node=1", "did you mean 'n_gpus_per_node'?"),
    wrong("++mas.workflow.args.round=2", "rounds"),
)
