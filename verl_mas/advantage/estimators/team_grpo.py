"""GRPO on a team: the control that per-agent baselines are compared with."""

from __future__ import annotations

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within


@estimator(compares_sessions=True, one_baseline=True, weighting="per_session")
def team_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """One mu and sigma over the sessions of a task for all agents, each session counted once."""
    return within(batch, batch.partition("task"), options, pool=())
