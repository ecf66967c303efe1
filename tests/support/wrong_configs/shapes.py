"""Debates, trees of candidates, and agents that exchange their policies."""

from __future__ import annotations

from wrong_configs.case import wrong

EACH = "mas.policies={a:{},b:{}} mas.agents.solver.policy=a mas.agents.verifier.policy=b"
SWAP = "mas.swap.agents=[solver,verifier]"
DEBATE = "mas.workflow.name=debate mas.agents=null"
TREE = "mas.workflow.name=generate_verify_refine mas.agents=null"

CASES = (
    # The exchange of policies.
    wrong(SWAP, "agents that share a policy have nothing to exchange"),
    wrong(f"{EACH} mas.swap.agents=[solver,verifer]", "did you mean 'verifier'"),
    wrong(f"{EACH} mas.swap.agents=[solver]", "two different agents, or more"),
    wrong(f"{EACH} {SWAP} ++mas.policies.b.trainable=false", "the policy b is frozen"),
    wrong(f"{EACH} {SWAP} ++mas.policies.b.remote={{base_url:http://x/v1,model:m}}", "the policy b is remote"),
    wrong(f"{EACH} {SWAP} ++mas.policies.b.overrides.rollout.temperature=0.5", "differ in rollout"),
    wrong(f"{EACH} {SWAP} mas.swap.every=0", "mas.swap.every"),
    wrong(
        f"{EACH} {SWAP} mas.swap.every=9 trainer.total_training_steps=9", "ends before the first exchange", warned=True
    ),
    wrong(f"{EACH} mas.swap.every=9", "no agents exchange", warned=True),
    # Debates.
    wrong(f"{DEBATE} ++mas.workflow.args.debaters=0", "debaters"),
    wrong(f"{DEBATE} ++mas.workflow.args.score=verl", "score=verl"),
    wrong(f"{DEBATE} ++mas.workflow.args.judge=true mas.faults.max_acts=6", "whose longest session has 7 acts"),
    wrong(f"{DEBATE} ++mas.workflow.args.influence=0.3", "with answer_reward=0"),
    wrong(f"{DEBATE} ++mas.workflow.args.answer_reward=1 mas.reward.preset=dr_mas", "mas.reward.local"),
    # A tree has k + k^2 + k^3 acts.
    wrong(f"{TREE} mas.branch.k=6 actor_rollout_ref.rollout.n=1", "whose longest session has 258 acts"),
)
