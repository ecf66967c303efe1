"""Rows that a policy's update is padded with, by our rule and by verl's, on the same row counts.

python benchmarks/trainer_padding.py
"""

from __future__ import annotations

import numpy as np

from verl_mas.trainer.batching import plan, verl_padding

RANKS, TASKS, SESSIONS, STEPS = 8, 64, 8, 1000


def main() -> None:
    # Acts per session of an agent that goes on with probability one half, so a mean of two.
    counts = np.random.default_rng(0).geometric(0.5, size=(STEPS, TASKS * SESSIONS)).sum(axis=1)
    print(f"{RANKS} workers, {TASKS} tasks x {SESSIONS} sessions, {STEPS} steps of {counts.mean():.0f} rows on average")
    print(f"{'optimiser steps':>16} {'ours, most':>11} {'ours, mean':>11} {'verl, mean':>11} {'verl / rows':>12}")
    for updates in (1, 2, 4):
        ours = np.array([plan(int(n), updates, RANKS).padding for n in counts])
        verl = np.array([verl_padding(int(n), RANKS, TASKS // updates, SESSIONS) for n in counts])
        share = (verl / counts).mean()
        print(f"{updates:>16} {ours.max():>11} {ours.mean():>11.1f} {verl.mean():>11.1f} {share:>12.1%}")
        assert ours.max() <= RANKS * updates - 1
    print(f"the measured case of 1201 rows: ours {plan(1201, 1, RANKS).padding}, verl {verl_padding(1201, 8, 64, 8)}")


if __name__ == "__main__":
    main()
