"""Checks the rows and groups of a batch before the estimator compares them. An error names the row or the group."""

from __future__ import annotations

from verl_mas.advantage.kernel import Partition
from verl_mas.advantage.record import AdvantageInput
from verl_mas.config.registry import nearest
from verl_mas.errors import DataError
from verl_mas.util.later import Tensor, torch

ACT = ("task", "session", "agent", "instance", "turn", "branch")
GROUP = ("task", "session", "agent", "instance", "turn")


def check_rows(batch: AdvantageInput) -> None:
    """Check that scores are finite, agents are known, and no row appears twice."""
    act = tuple(column for column in ACT if getattr(batch, column) is not None)
    if (row := _first(~torch.isfinite(batch.scores))) is not None:
        value = f"the score of {batch.describe(row, *act)} is {float(batch.scores[row])}"
        fix = "correct the reward function, or drop the session"
        raise DataError(value, rule="a score is a finite number", fix=fix)
    agents = batch.codes("agent")
    for code, name in enumerate(agents.names):
        if batch.agents is not None and name not in batch.agents:
            value = f"{batch.describe(_row_of(code, agents.ids), 'task', 'session', 'agent')} is not of this team"
            fix = nearest(str(name), list(batch.agents))
            raise DataError(value, rule="every row comes from an agent of mas.agents", fix=fix)
    acts = batch.partition(*act)
    if acts.count < len(batch):
        row = _row_of(torch.bincount(acts.ids).argmax(), acts.ids)
        value = f"{batch.describe(row, *act)} is in the batch more than once"
        fix = "mark padding rows as padding, and give every candidate its own branch"
        raise DataError(value, rule="an act is one row; a copy would count twice in its group", fix=fix)


def check_branches(batch: AdvantageInput, groups: Partition, branching: Tensor, size: int | None) -> None:
    """Check each group of candidates: all have one prompt (if the batch has prompts), and there are `size` of them.

    If `size` is None, a group may have any number of candidates.
    """
    rows = branching[batch.codes("agent").ids]
    group = tuple(column for column in GROUP if getattr(batch, column) is not None)
    if batch.prompt is not None:
        prompt = batch.codes("prompt").ids
        reference = prompt.new_zeros(groups.count).scatter_reduce_(0, groups.ids, prompt, "amax")
        if (row := _first(rows & (prompt != reference[groups.ids]))) is not None:
            value = f"{batch.describe(row, *group)} has candidates of different prompts"
            fix = "sample them with one `branch` call; do not build the prompt once per candidate"
            raise DataError(value, rule="the branches of one act are sampled from one prompt", fix=fix)
    sizes = torch.bincount(groups.ids, minlength=groups.count)[groups.ids]
    if size is not None and (row := _first(rows & (sizes != size))) is not None:
        value = f"{batch.describe(row, *group)} has {int(sizes[row])} candidates, not {size}"
        fix = "drop the whole session when a candidate fails, or leave group_size unset"
        raise DataError(value, rule="every group of branches has mas.advantage.group_size rows", fix=fix)


def _first(wrong: Tensor) -> int | None:
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None


def _row_of(part: int | Tensor, ids: Tensor) -> int:
    return int((ids == part).nonzero()[0])
