"""GDPO (arXiv 2601.05242) with Dr. MAS's groups: each part of a score is normalised, and then the sum is normalised."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, later_rewards, within
from verl_mas.advantage.record import PARTS
from verl_mas.util.later import torch


@estimator(compares_sessions=True, needs=("team_reward", "penalty"), gamma=None, penalty_weight=1.0)
def agent_gdpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = S / (deviation of S over all acts of agent k in the step + eps).

    S is the weighted sum of three advantages, which agent_grpo computes for the team's reward, for the act's own reward
    and for the negative penalty. The weights are those of mas.reward, and penalty_weight.
    """
    groups, summed = batch.partition("task", "agent"), torch.zeros_like(batch.scores, dtype=torch.float64)
    weights = (batch.team_weight, batch.local_weight, options.penalty_weight)
    for name, weight in zip(PARTS, weights, strict=True):
        if weight:
            later = later_rewards(batch, options.gamma if name == "local_reward" else None)
            rewards = batch.given(name).to(later) * (-1 if name == "penalty" else 1) + later
            summed = summed + weight * within(batch.with_scores(rewards), groups, options).advantages
    sums, acts = batch.with_scores(summed), batch.partition("agent")
    # The mean of the sums is not subtracted, so rows of uniform groups keep exactly 0. With baseline=mean the mean is 0
    # anyway; with best_other and group_of_one=raw the mean differs from 0 on purpose.
    spread = within(sums, acts, options).stats
    divisor = (spread.std + options.eps).masked_fill(spread.uniform, 1.0)
    return replace(within(sums, groups, options), advantages=summed / divisor[acts.ids])
