"""FoldGRPO (arXiv 2510.11967): process rewards change the score of a row, but not the baseline of the sessions."""

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.errors import DataError


@estimator(compares_sessions=True, one_baseline=True, needs=("team_reward", "local_reward"), weighting="per_session")
def fold_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = (clip(R + Q, 0, 1) - mu) / (sigma + eps), with mu and sigma of R over the sessions of the task.

    R is the weighted reward of the team, and R + Q is the row's score. If all sessions have the same R, the divisor is
    1 instead of sigma + eps, so even the rows of a lone session have an advantage that comes from Q.
    """
    reward = batch.team_weight * batch.given("team_reward").to(batch.scores).double()
    if bool(((reward < 0) | (reward > 1)).any()):
        value = f"rewards of the team from {reward.min():g} to {reward.max():g}"
        rule = "fold_grpo clips a reward with its penalties to 0..1, as rewards of its paper are 0 or 1"
        raise DataError(value, rule=rule, fix="scale them to 0..1, or set algorithm.adv_estimator=team_grpo")
    rewards, tasks = batch.with_scores(reward), batch.partition("task")
    centred = within(rewards, tasks, replace(options, scale="none"))
    advantages = centred.advantages + batch.scores.double().clamp(0, 1) - reward
    if options.scale != "none":
        pool = batch.partition() if options.scale == "batch_std" else tasks
        spread = within(rewards, pool, replace(options, scale="none")).stats
        divisor = (spread.std + options.eps).masked_fill(spread.uniform, 1.0)
        advantages = advantages / divisor[pool.ids]
    return replace(centred, advantages=advantages)
