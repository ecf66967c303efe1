"""Compare the padding rows that a policy's update gets by verl-mas's rule and by verl's rule.

python benchmarks/trainer_padding.py
"""

from __future__ import annotations

import math

import numpy as np

from verl_mas.trainer.batching import plan

RANKS, TASKS, SESSIONS, STEPS = 8, 64, 8, 1000
MEASURED = 1201


def main() -> None:
    # Rows of each step. After an act, the agent continues with probability one half: a mean of two acts.
    counts = np.random.default_rng(0).geometric(0.5, size=(STEPS, TASKS * SESSIONS)).sum(axis=1)
    print(f"{RANKS} workers, {TASKS} tasks x {SESSIONS} sessions, {STEPS} steps of {counts.mean():.0f} rows on average")
    print(f"{'optimiser steps':>16} {'ours, most':>11} {'ours, mean':>11} {'verl, mean':>11} {'verl / rows':>12}")
    for updates in (1, 2, 4):
        ours = np.array([-int(n) % plan(int(n), updates, RANKS).multiple for n in counts])
        verl = np.array([verl_padding(int(n), RANKS, TASKS // updates, SESSIONS) for n in counts])
        share = (verl / counts).mean()
        print(f"{updates:>16} {ours.max():>11} {ours.mean():>11.1f} {verl.mean():>11.1f} {share:>12.1%}")
        assert ours.max() <= RANKS * updates - 1
    ours, verl = -MEASURED % plan(MEASURED, 1, RANKS).multiple, verl_padding(MEASURED, RANKS, TASKS, SESSIONS)
    print(f"the measured case of {MEASURED} rows: ours {ours}, verl {verl} ({verl / MEASURED:.0%})")
    assert ours == 7


def verl_padding(rows: int, data_parallel: int, mini_batch: int, sessions_per_task: int) -> int:
    """Return the number of padding rows by verl's rule."""
    return -rows % math.lcm(data_parallel, mini_batch * sessions_per_task)


if __name__ == "__main__":
    main()
