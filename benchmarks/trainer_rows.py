"""The driver's own work per row of a step, without the time of calls to a real TransferQueue.

python benchmarks/trainer_rows.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
import torch
import transfer_queue as tq  # a real one, whose calls are timed
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from verl_mas import data_plane
from verl_mas.advantage import AdvantageOptions
from verl_mas.data_plane import Rows
from verl_mas.row import RESPONSE_MASK, SCORES, RowKey, RowTags
from verl_mas.trainer.batching import by_policy
from verl_mas.trainer.metrics import agent_metrics, policy_metrics
from verl_mas.trainer.step import PolicyRows, in_order, read_columns, step_advantages, write_advantages

P = ParamSpec("P")
T = TypeVar("T")
POLICIES, LIMIT_US = ("solver", "verifier"), 50.0


class Clock:
    """Seconds inside TransferQueue."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, call: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def fill(count: int, tokens: int) -> Rows:
    """Rows of a solver and a verifier, eight sessions per task."""
    keys = [str(RowKey(f"1-{i // 16}", i // 2 % 8, i % 2)) for i in range(count)]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 2, tokens + 1, (count,), generator=generator).tolist()
    mask = torch.nested.as_nested_tensor([torch.ones(n, dtype=torch.int64) for n in lengths], layout=torch.jagged)
    scores = torch.nested.as_nested_tensor(
        [torch.cat([torch.zeros(n - 1), torch.rand(1, generator=generator)]) for n in lengths], layout=torch.jagged
    )
    rows = KVBatchMeta(partition_id=data_plane.TRAIN, keys=keys, tags=[tags(i, n) for i, n in enumerate(lengths)])
    written = data_plane.write(rows, {RESPONSE_MASK: mask, SCORES: scores})
    return data_plane.join([written])


def tags(number: int, length: int) -> dict[str, object]:
    agent = POLICIES[number % 2]
    return RowTags(
        prompt_len=100,
        response_len=length,
        global_steps=1,
        min_global_steps=0,
        max_global_steps=0,
        policy=agent,
        agent=agent,
        role=agent,
        source="letters",
        instance=0,
        turn=0,
        branch=0,
        session=number // 2 % 8,
        trainable=True,
        committed=True,
        malformed=False,
        temperature=1.0,
        observation=number,
        team_reward=0.0,
        local_reward=0.0,
        penalty=0.0,
    ).as_dict()


def step(batch: Rows) -> None:
    """The work of `TeamTrainer` on the rows of a step, without its policies."""
    batch = in_order(batch)
    split = by_policy(batch.tags, POLICIES)
    parts = {name: PolicyRows(data_plane.select(batch, rows)) for name, rows in split.items()}
    columns = read_columns(batch)
    per_row, found = step_advantages(columns, "agent_grpo", AdvantageOptions(), list(POLICIES))
    write_advantages(batch, columns, per_row, parts)
    agent_metrics(columns, per_row, found)
    policy_metrics(parts, POLICIES)
    data_plane.join([part.batch for part in parts.values()])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    batch = fill(options.rows, options.tokens)
    clock = Clock()
    tq.kv_batch_put, tq.kv_batch_get = clock.watch(tq.kv_batch_put), clock.watch(tq.kv_batch_get)
    best = float("inf")
    for _ in range(3):
        clock.seconds, start = 0.0, time.perf_counter()
        step(batch)
        own = time.perf_counter() - start - clock.seconds
        best = min(best, own)
        print(f"own {own:.2f} s, TransferQueue {clock.seconds:.2f} s")
    per_row = 1e6 * best / options.rows
    print(
        f"own work: {per_row:.1f} us per row at {options.rows} rows (limit {LIMIT_US:.0f}): x {per_row / LIMIT_US:.2f}"
    )


if __name__ == "__main__":
    main()
