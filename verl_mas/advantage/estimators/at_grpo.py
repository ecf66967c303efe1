"""AT-GRPO (arXiv 2510.11062): candidates for one act are compared with each other."""

from __future__ import annotations

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput, validation
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.kernel import Partition, compact
from verl_mas.util.later import torch


@estimator(numbers_acts=True, needs=("branch",), group_size=None)
def at_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """Groups are (task, session, agent, instance, turn) for an agent that branches, else (task, agent, turn).

    Without branching, the prompts of a group may differ from turn 1 on. The metric `one_prompt` of an agent is 1 if
    each of its groups has one prompt by construction.
    """
    branching = branching_agents(batch)
    groups = _groups(batch, branching[batch.codes("agent").ids])
    validation.check_branches(batch, groups, branching, options.group_size)
    output = within(batch, groups, options, unit=("task", "session", "branch"))
    for agent, branches in zip(batch.codes("agent").names, branching.tolist(), strict=True):
        output.metrics[f"advantage/{agent}/one_prompt"] = float(branches)
    return output


def branching_agents(batch: AdvantageInput) -> torch.Tensor:
    """Return for each agent, in the order of its codes, whether any of its acts has several candidates."""
    agents = batch.codes("agent")
    branched = torch.zeros(len(agents.names), dtype=torch.long, device=batch.scores.device)
    return branched.index_add_(0, agents.ids, (batch.numbers("branch") > 0).long()) > 0


def _groups(batch: AdvantageInput, branches: torch.Tensor) -> Partition:
    over_sessions = batch.partition("task", "agent", "turn")
    owner = ("task", "session") if batch.instance is None else ("task", "session", "agent", "instance")
    owners = batch.partition(*owner)
    return compact(over_sessions.ids * (owners.count + 1) + torch.where(branches, owners.ids + 1, 0))
