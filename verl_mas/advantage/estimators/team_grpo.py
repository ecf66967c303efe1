"""GRPO on a team: the control for baselines per agent."""

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.kernel import moments


@estimator(compares_sessions=True, one_baseline=True, weighting="per_session", session_mean=False)
def team_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """One mu and sigma over the sessions of a task for all agents, each session counted once.

    session_mean: an act's score is the mean over the acts of its session, as in the GRPO arm of Dr. MAS's code.
    """
    if options.session_mean:
        session = batch.partition("task", "session")
        batch = batch.with_scores(moments(batch.scores.double(), session, "sample")[2].mean[session.ids])
    return within(batch, batch.partition("task"), options, pool=())
