"""The largest letter of a list of four windows: copies of one agent, each of which delegates or answers, and one agent
alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Arm, Start, Training, Trial
from benchmarks.evidence.claims import Claim, Number, gap, influence, success
from benchmarks.evidence.intervals import mean
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

SEEDS, STEPS = 3, 20
HERE = Path(__file__).parents[1] / "long_list.py"
START = Start(
    "long_list",
    (
        *("data", "long_list", "--noise", "0.15", "--train-rows", "2000", "--test-rows", "400"),
        *("--warm-up", "hidden=64", "layers=2", "initial=0.1", "steps=1000", "batch=64", "learning_rate=2e-3"),
        *("lessons=15000", "texts=2000", "vocabulary=4096"),
    ),
)
LENGTHS = ("list_8", "list_16", "list_64")
SHUFFLED = "list_32_shuffled"
TRIAL = Trial(
    "recursion",
    STEPS,
    "val-core/list_32/acc/mean@1",
    controls={name: f"val-core/{name}/acc/mean@1" for name in (*LENGTHS, SHUFFLED)},
    held_out="validation.parquet",
    settings=(
        "+recipe=recursion/laptop",
        f"mas.workflow.path={HERE}",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS // 2}",
        "mas.trajectories.enabled=false",
    ),
)


def arm(name: str, workflow: str = "LongList", **args: object) -> Training:
    sessions = args.pop("sessions", None)
    overrides = [
        f"mas.workflow.name={workflow}",
        *(f"++mas.workflow.args.{key}={value}" for key, value in args.items()),
    ]
    if sessions:
        overrides.append(f"actor_rollout_ref.rollout.n={sessions}")
    return Training(f"recursion_{name}", TRIAL, START, "recursive", tuple(overrides), seeds=SEEDS)


LEARNT = arm("learnt")
# Of the same tokens: it reads every window twice, and an agent that acts once has four times the sessions.
SCROLLS = arm("scrolls", "Scrolls")
READS = arm("reads", max_depth=0, sessions=32)
FIXED_1, FIXED_2 = arm("fixed_1", "FixedList", levels=1), arm("fixed_2", "FixedList", levels=2)
