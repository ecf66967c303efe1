"""Dr. MAS (arXiv 2602.08847): every agent is compared with itself on the same task."""

from __future__ import annotations

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.record import RUNNING_DECAY


@estimator(compares_sessions=True, shrinkage=None, decay=RUNNING_DECAY)
def agent_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = (R - mu_k) / (sigma_k + eps) over all acts of agent k in the sessions of one task."""
    return within(batch, batch.partition("task", "agent"), options)
