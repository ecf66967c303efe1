"""Sums: a pretrained LLM as solver and verifier of the math team, after 480 demonstrations of sums."""

from __future__ import annotations

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain
from benchmarks.evidence.tasks.base import Group, Task

STEPS = 16
TRIAL = Trial(
    "sums",
    STEPS,
    "val-core/arithmetic/acc/mean@1",
    settings=("+recipe=smollm2/laptop_arithmetic", f"trainer.total_training_steps={STEPS}"),
)
# A quarter of the steps in the demonstrations are wrong.
SHOWN = "start=runs/smollm2/model steps=60 batch=8 learning_rate=2e-4 lessons=480".split()
START = Start("smollm2_sums", ("data", "arithmetic", "--test-rows", "60", "--noise", "0.25", "--warm-up", *SHOWN))
ADAPTERS = Training("sums_adapters", TRIAL, START, "solver_verifier", seeds=3)

TASK = Task(
    "sums",
    "Sums",
    (Group("sums_team", (ADAPTERS,)),),
    (
        Claim(
            "solver and verifier with an adapter each gain 0.15 over their supervised start",
            gain(ADAPTERS),
            low=0.15,
            seeds=3,
        ),
    ),
)
