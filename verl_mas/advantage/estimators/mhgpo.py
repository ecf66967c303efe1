"""MHGPO (arXiv 2506.02718): an agent's acts on a task are one group, though their prompts differ."""

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within


@estimator(compares_sessions=True)
def mhgpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """agent_grpo in which every fork of a session, identified by its branch, is a separate rollout.

    A candidate that was continued to the end has its own team reward. Its act and the acts after it get this reward.
    """
    return within(batch, batch.partition("task", "agent"), options, unit=("task", "session", "branch"))
