"""Metrics of the groups, per agent."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from verl_mas.advantage.kernel import GroupStats, Partition, moments, total
from verl_mas.advantage.record import AdvantageInput, Codes


def per_agent(batch: AdvantageInput, groups: Partition, stats: GroupStats) -> dict[str, float]:
    """`advantage/<agent>/...` of every agent with a row.

    groups, group_size_{mean,min,max}  the estimator's groups in which the agent has a row, and their rows or units
    groups_of_one, groups_uniform      the share of them with one member, or without variance
    mu, sigma                          mean score, and root mean square deviation within a task
    inflation                          E[A^2] of its rows under one baseline for the team (Dr. MAS, Lemma 4.2):
                                       (sigma_k^2 + (mu_k - mu)^2) / sigma^2, over the tasks where sigma > 0;
                                       left out if there are none
    """
    agents = batch.codes("agent")
    metrics = {}
    columns = {**_group_columns(batch, groups, stats), **_lemma_columns(batch)}
    for name, values in columns.items():
        for agent, value in zip(agents.names, values.tolist(), strict=True):
            metrics[f"advantage/{agent}/{name}"] = value
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def _group_columns(batch: AdvantageInput, groups: Partition, stats: GroupStats) -> dict[str, Tensor]:
    agent, group = _distinct_pairs(batch.codes("agent"), groups)
    count = torch.bincount(agent.ids, minlength=agent.count).double()
    size = stats.size[group].double()
    single = stats.single[group]
    return {
        "groups": count,
        "group_size_mean": total(size, agent) / count,
        "group_size_min": _extreme(size, agent, "amin"),
        "group_size_max": _extreme(size, agent, "amax"),
        "groups_of_one": total(single.double(), agent) / count,
        "groups_uniform": total((stats.uniform[group] & ~single).double(), agent) / count,
    }


def _lemma_columns(batch: AdvantageInput) -> dict[str, Tensor]:
    agent = Partition(batch.codes("agent").ids, len(batch.codes("agent").names))
    x = batch.scores.double()
    rows = torch.bincount(agent.ids, minlength=agent.count).double()
    own = moments(x, batch.partition("task", "agent"), "population")[0]
    squared = total(own * own, agent) / rows
    inflation = _squared_team_advantage(batch, x)
    kept = ~inflation.isnan()
    kept_rows = total(kept.double(), agent)
    return {
        "mu": total(x, agent) / rows,
        "sigma": squared.sqrt(),
        "inflation": total(inflation.nan_to_num(0.0), agent) / kept_rows,
    }


def _squared_team_advantage(batch: AdvantageInput, x: Tensor) -> Tensor:
    """((R - mu) / sigma)^2 per row, with the moments of the task's sessions; NaN where sigma is 0."""
    task, session = batch.partition("task"), batch.partition("task", "session")
    weight = 1 / torch.bincount(session.ids, minlength=session.count)[session.ids].double()
    centred, _, stats = moments(x, task, "population", weight)
    variance = stats.std.square().masked_fill(stats.uniform, torch.nan)
    return centred.square() / variance[task.ids]


def _distinct_pairs(agents: Codes, groups: Partition) -> tuple[Partition, Tensor]:
    """Every (agent, group) that has a row: the agent as a partition of the pairs, and the group."""
    pairs = torch.unique(agents.ids * groups.count + groups.ids)
    agent = torch.div(pairs, max(1, groups.count), rounding_mode="floor")
    return Partition(agent, len(agents.names)), pairs % max(1, groups.count)


def _extreme(values: Tensor, parts: Partition, how: str) -> Tensor:
    out = values.new_zeros(parts.count)
    return out.scatter_reduce_(0, parts.ids, values, how, include_self=False)
