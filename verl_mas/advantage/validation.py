"""Refuses a batch whose groups are not what the estimator expects, with the group's name."""

from __future__ import annotations

from verl_mas.advantage.kernel import Partition
from verl_mas.advantage.record import AdvantageInput
from verl_mas.errors import DataError
from verl_mas.registry import nearest
from verl_mas.util.later import Tensor, torch

ACT = ("task", "session", "agent", "instance", "turn", "branch")
GROUP = ("task", "session", "agent", "instance", "turn")


def check_rows(batch: AdvantageInput) -> None:
    """Scores are finite, agents are known, and no row appears twice."""
    _check_finite(batch)
    _check_agents(batch)
    act = _known(batch, ACT)
    acts = batch.partition(*act)
    if acts.count < len(batch):
        row = _first_row(acts.ids, torch.bincount(acts.ids).argmax())
        raise DataError(
            f"{batch.describe(row, *act)} is in the batch more than once",
            rule="an act is one row; a copy would count twice in its group",
            fix="mark padding rows as padding, and give every candidate its own branch",
        )


def check_branches(batch: AdvantageInput, groups: Partition, branching: Tensor, size: int | None) -> None:
    """Every group of candidates has one prompt, where prompts are given, and `size` rows, where that is set."""
    rows = branching[batch.codes("agent").ids]
    if batch.prompt is not None:
        _check_one_prompt(batch, groups, rows)
    sizes = torch.bincount(groups.ids, minlength=groups.count)
    wrong = rows & (sizes[groups.ids] != size) if size is not None else torch.zeros_like(rows)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"{batch.describe(row, *_known(batch, GROUP))} has {int(sizes[groups.ids[row]])} candidates, not {size}",
            rule="every group of branches has mas.advantage.group_size rows",
            fix="drop the whole session when a candidate fails, or leave group_size unset",
        )


def _check_one_prompt(batch: AdvantageInput, groups: Partition, rows: Tensor) -> None:
    prompt = batch.codes("prompt").ids
    reference = prompt.new_zeros(groups.count).scatter_reduce_(0, groups.ids, prompt, "amax")
    wrong = rows & (prompt != reference[groups.ids])
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"{batch.describe(row, *_known(batch, GROUP))} has candidates of different prompts",
            rule="the branches of one act are sampled from one prompt",
            fix="sample them with one `branch` call; do not build the prompt once per candidate",
        )


def _check_finite(batch: AdvantageInput) -> None:
    wrong = ~torch.isfinite(batch.scores)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"the score of {batch.describe(row, *_known(batch, ACT))} is {float(batch.scores[row])}",
            rule="a score is a finite number",
            fix="correct the reward function, or drop the session",
        )


def _check_agents(batch: AdvantageInput) -> None:
    if batch.agents is None:
        return
    names = batch.codes("agent").names
    for code, name in enumerate(names):
        if name not in batch.agents:
            row = _first_row(batch.codes("agent").ids, code)
            raise DataError(
                f"{batch.describe(row, 'task', 'session', 'agent')} is not of this team",
                rule="every row comes from an agent of mas.agents",
                fix=nearest(str(name), list(batch.agents)),
            )


def _known(batch: AdvantageInput, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(column for column in columns if getattr(batch, column) is not None)


def _first_row(ids: Tensor, part: int | Tensor) -> int:
    return int((ids == part).nonzero()[0])
