"""GiGPO (arXiv 2505.10978) with Dr. MAS's groups: a combination that its authors name as untried."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.record import PARTS
from verl_mas.advantage.returns import actors, later_rewards
from verl_mas.util.later import Tensor, torch


@estimator(
    compares_sessions=True,
    numbers_acts=True,
    needs=("observation", "team_reward", "penalty"),
    step_weight=1.0,
    gamma=0.95,
)
def agent_gigpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """agent_grpo, plus step_weight times the advantage among agent k's acts on an equal observation of the task.

    A step is scored by its return, the sum over the agent's acts k >= t in the session of gamma ** (k - t) * r_k: r_k
    is the act's own reward, and at the last act the team's beside it. A penalty counts for its act alone.
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
    """The row's score, in which the team's reward is discounted and own rewards of later acts are added.

    It adds up the score's parts: the score, in float32, less the team's reward would leave rounding where a return is
    0, and the deviation of such a group is rounding, too.
    """
    acts, turn = actors(batch), batch.numbers("turn")
    last = turn.new_zeros(acts.count).scatter_reduce_(0, acts.ids, turn, "amax")
    discount = torch.pow(gamma, (last[acts.ids] - turn).double())
    parts: list[Tensor] = [batch.given(part).to(discount) for part in PARTS]
    team, own, penalty = parts
    return discount * batch.team_weight * team + batch.local_weight * (own + later_rewards(batch, gamma)) - penalty
