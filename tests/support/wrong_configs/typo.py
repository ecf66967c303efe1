"""Groups, options and names with a letter too many, too few or wrong. Keys of settings: test_every_setting.py."""

from __future__ import annotations

from wrong_configs.case import wrong

AR, OVERRIDES = "actor_rollout_ref", "++mas.policies.main.overrides"

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
    wrong("+data.train_batchsize=8", "did you mean data.train_batch_size"),
    wrong(f"{AR}.actor.clipratio=0.2", f"{AR}.actor.clip_ratio"),
    wrong(f"++{AR}.rollout.engine_kwargs.transformers.threds=2", "did you mean 'threads'?"),
    # Names and keys that only a later check knows.
    wrong(f"{AR}.actor.strategy=bogus", "known: automodel, fsdp, fsdp2"),
    wrong(f"{AR}.actor.strategy=fdsp", "did you mean 'fsdp'?"),
    wrong(f"{AR}.rollout.name=vlm", "did you mean 'vllm'?"),
    wrong(f"{OVERRIDES}.actor.strategy=bogus", "known: automodel, fsdp, fsdp2"),
    wrong(f"{OVERRIDES}.rollout.name=vlm", "did you mean 'vllm'?"),
    wrong("++mas.policies.main={overrides:{actor:5}}", "mas.policies.main.overrides.actor=5"),
    wrong("mas.branch.commit=best", "greedy"),
    wrong("mas.workflw.name=single", "mas.workflow.name"),
    wrong("++mas.agents.solvr.system_prompt=x", "solver"),
    wrong("++mas.workflow.args.round=2", "rounds"),
)
