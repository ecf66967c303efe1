"""Metrics of the groups, per agent."""

from __future__ import annotations

import math

from verl_mas.advantage.kernel import GroupStats, Partition, moments, total
from verl_mas.advantage.record import AdvantageInput, Codes
from verl_mas.util.later import Tensor, torch


def per_agent(batch: AdvantageInput, groups: Partition, stats: GroupStats) -> dict[str, float]:
    """`advantage/<agent>/...` of every agent with a row.

    groups, group_size_{mean,min,max}  the estimator's groups in which the agent has a row, and their rows or units
    groups_of_one, groups_uniform      the share of them with one member, or without variance
    sigma                              root mean square deviation of its scores within a task
    inflation                          E[A^2] of its acts under one baseline for the team (Dr. MAS, Lemma 4.2):
                                       (sigma_k^2 + (mu_k - mu)^2) / sigma^2, over the tasks where sigma > 0; mu: mean
    signal_share                       the part of it that depends on what the agent does:
                                       sigma_k^2 / (sigma_k^2 + (mu_k - mu)^2), over the tasks where sigma_k > 0

    The team's baseline counts a session once, so in these two an act of a session of n acts counts 1/n: the mean of
    `inflation` over the agents, weighted so, is exactly 1. They are left out if there is no such task.
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
    session = batch.partition("task", "session")
    weight = 1 / torch.bincount(session.ids, minlength=session.count)[session.ids].double()
    inflation, share = _under_one_baseline(batch, x, weight)
    return {
        "sigma": (total(own * own, agent) / rows).sqrt(),
        "inflation": _mean(inflation, agent, weight),
        "signal_share": _mean(share, agent, weight),
    }


def _under_one_baseline(batch: AdvantageInput, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Per row ((R - mu) / sigma)^2 and sigma_k^2 / (sigma_k^2 + (mu_k - mu)^2); NaN where sigma, or sigma_k, is 0."""
    task, agent = batch.partition("task"), batch.partition("task", "agent")
    centred, _, team = moments(x, task, "population", weight)
    variance = team.std.square().masked_fill(team.uniform, torch.nan)
    inflation = centred.square() / variance[task.ids]
    _, _, own = moments(x, agent, "population", weight)
    task_of = task.ids.new_empty(agent.count).index_copy_(0, agent.ids, task.ids)
    signal = own.std.square().masked_fill(own.uniform, torch.nan)
    share = signal / (signal + (own.mean - team.mean[task_of]).square())
    return inflation, share[agent.ids]


def _mean(values: Tensor, parts: Partition, weight: Tensor) -> Tensor:
    """Over the rows of each part that have a value; NaN where none has."""
    kept = weight.masked_fill(values.isnan(), 0.0)
    return total(kept * values.nan_to_num(0.0), parts) / total(kept, parts)


def _distinct_pairs(agents: Codes, groups: Partition) -> tuple[Partition, Tensor]:
    """Every (agent, group) that has a row: the agent as a partition of the pairs, and the group."""
    pairs = torch.unique(agents.ids * groups.count + groups.ids)
    agent = torch.div(pairs, max(1, groups.count), rounding_mode="floor")
    return Partition(agent, len(agents.names)), pairs % max(1, groups.count)


def _extreme(values: Tensor, parts: Partition, how: str) -> Tensor:
    out = values.new_zeros(parts.count)
    return out.scatter_reduce_(0, parts.ids, values, how, include_self=False)
