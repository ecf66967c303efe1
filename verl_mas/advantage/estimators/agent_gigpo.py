"""GiGPO (arXiv 2505.10978) with Dr. MAS's groups: a combination that its authors name as untried."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.util.later import Tensor, torch


@estimator(compares_sessions=True, step_weight=1.0, gamma=0.95)
def agent_gigpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """agent_grpo, plus step_weight times the advantage among agent k's acts on an equal observation of the task.

    A step's score is the row's, discounted by gamma for every act that the agent still takes in the session.
    """
    episode = within(batch, batch.partition("task", "agent"), options)
    steps = batch.partition("task", "agent", "observation")
    step = within(replace(batch, scores=step_scores(batch, options.gamma or 0.0)), steps, options)
    met_again = step.stats.size[step.stats.size > 1].sum() / max(1, len(batch))
    return replace(
        episode,
        advantages=episode.advantages + (options.step_weight or 0.0) * step.advantages,
        metrics={"advantage/acts_with_a_step_group": float(met_again)},
    )


def step_scores(batch: AdvantageInput, gamma: float) -> Tensor:
    """gamma ** (acts of this agent, or of this instance of it, still to come in the session) * score."""
    actor = ("task", "session", "agent") if batch.instance is None else ("task", "session", "agent", "instance")
    acts = batch.partition(*actor)
    turn = batch.numbers("turn")
    last = turn.new_zeros(acts.count).scatter_reduce_(0, acts.ids, turn, "amax")
    return batch.scores.double() * torch.pow(gamma, (last[acts.ids] - turn).double())
