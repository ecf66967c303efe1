"""What counts in the loss, and which tasks are trained on."""

from __future__ import annotations

from wrong_configs.case import wrong

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
UNIFORM = "mas.filter.drop=uniform"

CASES = (
    wrong("mas.loss.weighting=act", "one of row, agent, session, token"),
    wrong(f"mas.loss.weighting=row {ACTOR}.loss_agg_mode=seq-mean-token-sum", "both say how rows are added up"),
    wrong(f"mas.loss.weighting=token {ACTOR}.policy_loss.loss_mode=sapo", "a way of its own"),
    wrong(
        f"mas.loss.weighting=session {ACTOR}.policy_loss.loss_mode=geo_mean", "the mean over the rows of a micro batch"
    ),
    wrong("mas.filter.keep_share=0", "above 0"),
    wrong("mas.filter.keep_share=1", "every task is kept", warned=True),
    wrong("mas.filter.refill=true", "replaces the tasks that mas.filter leaves out"),
    wrong(f"{UNIFORM} mas.filter.max_rounds=5", "each step samples once", warned=True),
    wrong(f"{UNIFORM} mas.filter.refill=true ++data.gen_batch_size=2", "read one by one"),
    wrong(f"{UNIFORM} mas.filter.refill=true skip.rollout_tq.enable=true", "a refill samples several times"),
    wrong(f"{UNIFORM} algorithm.adv_estimator=agent_reinforce_pp", "rows of equal scores have one, too"),
    wrong(f"mas.filter.keep_share=0.5 {ROLLOUT}.n=1", "and there is one"),
    wrong("mas.filter.keep_share=0.5 mas.reward.team=0", "it has no weight"),
)
