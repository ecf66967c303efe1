"""AT-GRPO (arXiv 2510.11062): candidates for one act are compared with each other."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.advantage import AdvantageInput, AdvantageOptions, AdvantageOutput
from verl_mas.advantage.estimator import estimator, within
from verl_mas.advantage.kernel import Partition, total
from verl_mas.advantage.record import Label
from verl_mas.util.later import Tensor, torch


@estimator(numbers_acts=True, needs=("branch",), group_size=None)
def at_grpo(batch: AdvantageInput, options: AdvantageOptions) -> AdvantageOutput:
    """Groups are (task, session, agent, instance, turn) for an agent that branches, else (task, agent, turn).

    Without branching, the prompts of a group may differ from turn 1 on. The metric `one_prompt` of an agent is 1 if
    each of its groups has one prompt by construction.
    """
    agents = batch.codes("agent")
    # Whether any act of the agent has several candidates.
    branching = total((batch.numbers("branch") > 0).double(), Partition(agents.ids, len(agents.names))) > 0
    rows = branching[agents.ids]
    # Sessions and instances are numbered from 1 for an agent that branches. For other agents every number is 0, so
    # their groups span all sessions and instances.
    columns = batch.existing("session", "instance")
    apart: dict[str, Label] = {column: torch.where(rows, batch.codes(column).ids + 1, 0) for column in columns}
    groups = replace(batch, **apart).partition("task", "agent", "turn", *columns)
    check_branches(batch, groups, rows, options.group_size)
    output = within(batch, groups, options, unit=("task", "session", "branch"))
    for agent, branches in zip(agents.names, branching.tolist(), strict=True):
        output.metrics[f"advantage/{agent}/one_prompt"] = float(branches)
    return output


def check_branches(batch: AdvantageInput, groups: Partition, branched: Tensor, size: int | None) -> None:
    """Check that each group of `branched` rows has a single prompt (if the batch has prompts) and `size` rows. If
    `size` is None, a group may have any number of rows."""
    act = batch.existing("task", "session", "agent", "instance", "turn")
    if batch.prompt is not None:
        prompt = batch.codes("prompt").ids
        reference = prompt.new_zeros(groups.count).scatter_reduce_(0, groups.ids, prompt, "amax")
        mixed = branched & (prompt != reference[groups.ids])
        rule = "the branches of one act are sampled from one prompt"
        fix = "sample them with one `branch` call; do not build the prompt once per candidate"
        batch.refuse(mixed, "has candidates of different prompts", act, rule=rule, fix=fix)
    if size is not None:
        sizes = torch.bincount(groups.ids, minlength=groups.count)[groups.ids]
        fix = "drop the whole session when a candidate fails, or leave group_size unset"
        rule = "every group of branches has mas.advantage.group_size rows"
        batch.refuse(branched & (sizes != size), f"has {{}} candidates, not {size}", act, sizes, rule=rule, fix=fix)
