"""Which rows go where. Rows are keys and tags; nothing here touches a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_mas.errors import DataError
from verl_mas.row import POLICY, is_padding

Tags = Sequence[Mapping[str, object]]


def by_policy(tags: Tags, policies: Sequence[str]) -> dict[str, list[int]]:
    """The rows of every policy; every row has one."""
    rows: dict[str, list[int]] = {name: [] for name in policies}
    for i, tag in enumerate(tags):
        policy = tag.get(POLICY)
        if policy not in rows:
            raise DataError(
                f"row {i} is tagged with policy {policy!r}",
                rule=f"every row belongs to one of {', '.join(policies)}",
                fix="set actor_rollout_ref.rollout.agent.default_agent_loop=mas, which tags rows",
            )
        rows[policy].append(i)
    return rows


@dataclass(frozen=True)
class Plan:
    """How a policy's rows become optimiser steps."""

    rows: int
    updates: int
    multiple: int

    @property
    def padding(self) -> int:
        return -self.rows % self.multiple


def plan(rows: int, updates: int, data_parallel: int) -> Plan:
    """As many optimiser steps as asked for, but never more than there are rows."""
    updates = max(1, min(updates, rows))
    return Plan(rows, updates, data_parallel * updates)


def spread_padding(tags: Tags, data_parallel: int, updates: int) -> list[int]:
    """An order in which every optimiser step has its share of real rows.

    verl gives each data-parallel rank a contiguous chunk and cuts that into mini-batches; a mini-batch of
    padding only would divide by zero tokens. Real rows keep their order and their rank.
    """
    chunk = len(tags) // data_parallel
    size = chunk // updates
    order: list[int] = []
    turn = 0
    for rank in range(data_parallel):
        rows = range(rank * chunk, (rank + 1) * chunk)
        padding = [i for i in rows if is_padding(tags[i])]
        real = iter([i for i in rows if not is_padding(tags[i])])
        share: list[list[int]] = [[] for _ in range(updates)]
        for i in padding:
            share[turn % updates].append(i)
            turn += 1
        for mini in share:
            order += [next(real) for _ in range(size - len(mini))] + mini
    return order
