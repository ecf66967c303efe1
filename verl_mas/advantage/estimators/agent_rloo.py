"""RLOO (arXiv 2402.14740) with Dr. MAS's groups."""

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator
from verl_mas.advantage.estimators.agent_grpo import agent_grpo
from verl_mas.advantage.record import RUNNING_DECAY


@estimator(
    compares_sessions=True,
    replaces=("rloo", "rloo_vectorized"),
    baseline="leave_one_out",
    scale="none",
    gamma=None,
    shrinkage=None,
    decay=RUNNING_DECAY,
)
def agent_rloo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = R minus the mean score of agent k's acts in the *other* sessions of the task.

    All acts of a session share the session's reward. So if the baseline of an act included acts of the same session,
    the baseline would depend on the act itself.
    """
    return agent_grpo.function(batch, options)
