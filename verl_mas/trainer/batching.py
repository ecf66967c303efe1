"""Order, padding and split of a step's rows. They are computed from keys and tags, without reading a tensor."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from verl_mas.errors import DataError
from verl_mas.verl_.row import POLICY, is_padding

Tags = Sequence[Mapping[str, object]]


def by_policy(tags: Tags, policies: Sequence[str]) -> dict[str, list[int]]:
    """Split the row indices by policy. Every row must be tagged with one of the policies."""
    rows: dict[str, list[int]] = {name: [] for name in policies}
    for i, tag in enumerate(tags):
        policy = tag.get(POLICY)
        if policy not in rows:
            value = f"row {i} is tagged with policy {policy!r}"
            rule = f"every row belongs to one of {', '.join(policies)}"
            fix = "set actor_rollout_ref.rollout.agent.default_agent_loop=mas, which tags rows"
            raise DataError(value, rule=rule, fix=fix)
        rows[policy].append(i)
    return rows


def fixed_sizes(section: DictConfig, *, reference: bool) -> tuple[int, int]:
    """Return the rows per micro batch of a worker: in an optimiser step, and in the log-prob pass over all of its rows.
    A size is 1 if micro batches are filled by tokens instead.

    `section`: `actor_rollout_ref`. `reference`: whether the reference is a separate model.
    """
    update = scoring = 1
    if not section.actor.use_dynamic_bsz:
        update = section.actor.ppo_micro_batch_size_per_gpu
        scoring = section.rollout.log_prob_micro_batch_size_per_gpu
    if reference and not section.ref.log_prob_use_dynamic_bsz:
        scoring = math.lcm(scoring, section.ref.log_prob_micro_batch_size_per_gpu)
    return update, scoring


@dataclass(frozen=True)
class UpdatePlan:
    """The split of a policy's rows into optimiser steps. Rows are padded to a multiple of `multiple`."""

    updates: int
    data_parallel: int
    multiple: int


def plan(rows: int, updates: int, data_parallel: int, update: int = 1, scoring: int = 1) -> UpdatePlan:
    """Plan as many optimiser steps as requested, but never more than there are rows.

    `update` and `scoring` are the sizes that `fixed_sizes` returns. verl requires that the size of a fixed micro batch
    divides the number of rows that are split into micro batches.
    """
    updates = max(1, min(updates, rows))
    return UpdatePlan(updates, data_parallel, data_parallel * math.lcm(updates * update, scoring))


def spread_padding(tags: Tags, data_parallel: int, updates: int) -> list[int]:
    """Return an order in which every optimiser step, and each of its micro batches, gets its share of real rows.

    verl gives each data-parallel rank a contiguous chunk of rows and cuts the chunk into mini-batches. In a mini-batch
    of padding only, the loss would be divided by zero tokens. Real rows keep their order and their rank.
    """
    chunk = len(tags) // data_parallel
    size = chunk // updates
    order: list[int] = []
    turn = 0
    for rank in range(data_parallel):
        rows = range(rank * chunk, (rank + 1) * chunk)
        real = iter([i for i in rows if not is_padding(tags[i])])
        share: list[list[int]] = [[] for _ in range(updates)]
        for i in rows:
            if is_padding(tags[i]):
                share[turn % updates].append(i)
                turn += 1
        for mini in share:
            order += evenly([next(real) for _ in range(size - len(mini))], mini)
    return order


def evenly(rows: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Merge padding into rows at equal distances."""
    places = [((i + 1) / len(rows), row) for i, row in enumerate(rows)]
    places += [((i + 1) / len(padding), row) for i, row in enumerate(padding)]
    return [row for _, row in sorted(places, key=lambda place: place[0])]


def side_by_side(groups: Sequence[object], lengths: Sequence[int], data_parallel: int) -> list[int]:
    """Return an order in which the rows of a group are adjacent and, as far as ranks of equal size allow, on one rank.

    The longest groups are placed first. Each group goes to the rank that can take most of its rows; among equal ranks,
    the rank with the fewest tokens so far is chosen.
    """
    rows: dict[object, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        rows[group].append(row)
    ranks: list[list[int]] = [[] for _ in range(data_parallel)]
    tokens, size = [0] * data_parallel, len(groups) // data_parallel
    for group in sorted(rows, key=lambda group: -sum(lengths[row] for row in rows[group])):
        while left := rows[group]:
            free = [size - len(rank) for rank in ranks]
            # Prefer a rank that can take the whole group.
            rank = min(range(data_parallel), key=lambda rank: (-min(free[rank], len(left)), tokens[rank]))
            rows[group], placed = left[free[rank] :], left[: free[rank]]
            ranks[rank] += placed
            tokens[rank] += sum(lengths[row] for row in placed)
    return [row for rank in ranks for row in rank]
