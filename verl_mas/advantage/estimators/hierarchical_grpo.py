"""M-GRPO (arXiv 2511.13288): compares the main agent across sessions, and its sub-agents across invocations."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.kernel import Partition
from verl_mas.advantage.options import REQUIRED
from verl_mas.util.later import torch

# Columns that identify the acts of one agent in one session. These acts lie in one group.
SESSION = ("task", "session", "agent")


@estimator(compares_sessions=True, numbers_acts=True, needs=("instance",), weighting="per_session", main=REQUIRED)
def hierarchical_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """A = (R - mu_k) / (sigma_k + eps) over the invocations of agent k in the sessions of one task.

    An invocation is an instance of the agent; all acts of the main agent in a session are one invocation. With
    weighting=per_invocation, each invocation has the same weight, which its acts share. With per_session, each session
    has the same weight, which the invocations of k in the session share equally.
    """
    invocations = _invocations(batch, str(options.main))
    return within(batch, batch.partition("task", "agent"), options, unit=SESSION, invocations=invocations)


def _invocations(batch: AdvantageInput, main: str) -> Partition:
    agents = batch.codes("agent")
    is_main = torch.tensor([name == main for name in agents.names], dtype=torch.bool, device=agents.ids.device)
    instance = torch.where(is_main[agents.ids], 0, batch.codes("instance").ids)
    return replace(batch, instance=instance).partition(*SESSION, "instance")
