"""REINFORCE++ (arXiv 2501.03262) per agent: no groups by task, one normalisation over the whole step."""

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within


@estimator(replaces=("reinforce_plus_plus", "reinforce_plus_plus_baseline"), weighting="per_token")
def agent_reinforce_pp(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = (R - mu_k) / (sigma_k + eps) over all trained tokens of agent k in the step."""
    return within(batch, batch.partition("agent"), options)
