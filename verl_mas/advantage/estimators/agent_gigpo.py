"""GiGPO (arXiv 2505.10978) with Dr. MAS's groups, a combination that the authors call untried."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import actors, estimator, later_rewards, within
from verl_mas.advantage.record import PARTS
from verl_mas.util.later import Tensor, torch


@estimator(
    compares_sessions=True,
    numbers_acts=True,
    needs=("observation", "team_reward", "penalty"),
    step_weight=1.0,
    gamma=0.95,
)
def agent_gigpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """Add step_weight times a step advantage to agent_grpo's advantage.

    The step advantage compares the agent's acts that have equal observations in a task. A step is scored by its return:
    the sum of gamma ** (k - t) * r_k over the agent's acts k >= t in the session. r_k is the own reward of act k; the
    last act also has the team's reward. A penalty counts for its act alone.
    """
    episode = within(batch, batch.partition("task", "agent"), options)
    steps = batch.partition("task", "agent", "observation")
    step = within(batch.with_scores(step_returns(batch, options.gamma or 0.0)), steps, options)
    met_again = step.stats.size[step.stats.size > 1].sum() / max(1, len(batch))
    return replace(
        episode,
        advantages=episode.advantages + (options.step_weight or 0.0) * step.advantages,
        metrics={"advantage/acts_with_a_step_group": float(met_again)},
    )


def step_returns(batch: AdvantageInput, gamma: float) -> Tensor:
    """Compute the returns: scores in which the team's reward is discounted and own rewards of later acts are added.

    The returns are sums of the score's parts. If the team's reward were subtracted from the float32 score instead,
    rounding would turn some returns of 0 into tiny numbers, and the deviation of their group would not be 0.
    """
    acts, turn = actors(batch), batch.numbers("turn")
    last = turn.new_zeros(acts.count).scatter_reduce_(0, acts.ids, turn, "amax")
    discount = torch.pow(gamma, (last[acts.ids] - turn).double())
    parts: list[Tensor] = [batch.given(part).to(discount) for part in PARTS]
    team, own, penalty = parts
    return discount * batch.team_weight * team + batch.local_weight * (own + later_rewards(batch, gamma)) - penalty
