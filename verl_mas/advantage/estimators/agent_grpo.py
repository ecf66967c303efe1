"""Dr. MAS (arXiv 2602.08847): every agent is compared with itself on the same task."""

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, later_rewards, within
from verl_mas.advantage.record import RUNNING_DECAY

VERLS: tuple[str, ...] = ("grpo", "grpo_vectorized", "gdpo", "gpg", "grpo_passk", "opo", "remax")
VERLS += ("optimal_token_baseline", "tir_optimal_token_baseline")


@estimator(compares_sessions=True, replaces=VERLS, gamma=None, shrinkage=None, decay=RUNNING_DECAY)
def agent_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = (R - mu_k) / (sigma_k + eps) over all acts of agent k in the sessions of one task."""
    scores = batch.scores + batch.local_weight * later_rewards(batch, options.gamma)
    return within(batch.with_scores(scores), batch.partition("task", "agent"), options)
