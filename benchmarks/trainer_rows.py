"""The driver's own work per row of a step, with the calls to a real TransferQueue counted apart.

python benchmarks/trainer_rows.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_mas import row as fields
from verl_mas.advantage import AdvantageOptions
from verl_mas.trainer import metrics as m
from verl_mas.trainer import rows as r
from verl_mas.trainer import step as s

POLICIES, LIMIT_US = ("solver", "verifier"), 50.0


class Clock:
    """Seconds inside TransferQueue."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def fill(count: int, tokens: int) -> KVBatchMeta:
    """Rows of a solver and a verifier, eight sessions a task."""
    keys = [f"1-{i // 16}_{i // 2 % 8}_{i % 2}" for i in range(count)]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 2, tokens + 1, (count,), generator=generator).tolist()
    mask = torch.nested.as_nested_tensor([torch.ones(n, dtype=torch.int64) for n in lengths], layout=torch.jagged)
    scores = torch.nested.as_nested_tensor(
        [torch.cat([torch.zeros(n - 1), torch.rand(1, generator=generator)]) for n in lengths], layout=torch.jagged
    )
    rows = {fields.RESPONSE_MASK: mask, fields.SCORES: scores}
    tags = [
        {
            **{fields.POLICY: POLICIES[i % 2], fields.AGENT: POLICIES[i % 2], fields.TURN: 0, fields.BRANCH: 0},
            **{fields.TRAINABLE: True, fields.MALFORMED: False, fields.OBSERVATION: i, "global_steps": 1},
            **{fields.TEAM_REWARD: 0.0, fields.LOCAL_REWARD: 0.0, fields.PENALTY: 0.0},
            **{"prompt_len": 100, "response_len": n, "seq_len": 100 + n},
        }
        for i, n in enumerate(lengths)
    ]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(rows, batch_size=count), tags=tags)
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def step(batch: KVBatchMeta) -> None:
    """What `MasTrainer` does with the rows of a step besides calling its policies."""
    batch = s.in_order(batch)
    split = r.by_policy(batch.tags, POLICIES)
    parts = {name: s.PolicyRows(r.select(batch, rows)) for name, rows in split.items()}
    columns = s.read(batch)
    per_row, found = s.advantages(batch, columns, "agent_grpo", AdvantageOptions(), list(POLICIES))
    s.write_advantages(batch, columns, per_row, parts)
    m.of_agents(batch, columns, per_row, found)
    m.of_policies(parts, POLICIES)
    r.join([part.batch for part in parts.values()])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    batch = fill(options.rows, options.tokens)
    clock = Clock()
    s.tq.kv_batch_put, s.tq.kv_batch_get = clock.watch(tq.kv_batch_put), clock.watch(tq.kv_batch_get)
    best = float("inf")
    for _ in range(3):
        clock.seconds, start = 0.0, time.perf_counter()
        step(batch)
        own = time.perf_counter() - start - clock.seconds
        best = min(best, own)
        print(f"own {own:.2f} s, TransferQueue {clock.seconds:.2f} s")
    per_row = 1e6 * best / options.rows
    print(f"own work: {per_row:.1f} us a row at {options.rows} rows (limit {LIMIT_US:.0f}): x {per_row / LIMIT_US:.2f}")


if __name__ == "__main__":
    main()
