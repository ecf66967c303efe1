"""The largest letter of a list of four windows: an agent that delegates parts of it to copies of itself, and one agent
alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, success
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

SEEDS, STEPS = 3, 24
HERE = Path(__file__).parents[1] / "long_list.py"
START = Start(
    "long_list",
    (
        *("data", "long_list", "--noise", "0.05", "--train-rows", "2000", "--test-rows", "90"),
        *("--warm-up", "hidden=64", "layers=2", "initial=0.1", "steps=900", "batch=64", "learning_rate=2e-3"),
        *("lessons=6000", "texts=2000", "vocabulary=4096"),
    ),
)
# One and eight windows, and four windows with the answers of other lists.
CONTROLS = {"1 window": "list_8", "8": "list_64", "shuffled": "list_32_shuffled"}
SHUFFLED = control("shuffled")
# The best guess from one window of four: `benchmarks.evidence.floors.floor_of_list`, exact.
FLOOR = 0.306
SETTINGS = (
    "+recipe=recursion/laptop",
    f"mas.plugins=[{HERE}]",
    f"mas.workflow.path={HERE}",
    "mas.workflow.name=Arms",
    "algorithm.adv_estimator=agent_rloo",
    "mas.advantage=null",
    "mas.policies={learnt: {}, scrolls: {}}",
    "mas.agents={learnt_solver: {policy: learnt}, fixed_solver: {policy: learnt}, scrolls_solver: {policy: scrolls}}",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "mas.trajectories.enabled=false",
    "actor_rollout_ref.actor.optim.lr=5e-4",
)


def arm(name: str, team: str, *overrides: str, within: str | None = None) -> Training:
    """A team of `Arms`, whose run has the numbers of all of them."""
    trial = Trial(
        f"recursion_{name}",
        STEPS,
        f"val-aux/list_32/{team}/mean@1",
        controls={windows: f"val-aux/{source}/{team}/mean@1" for windows, source in CONTROLS.items()},
        held_out="validation.parquet",
        settings=SETTINGS,
        # The fixed depth is by the weights of the learnt one.
        tokens=f"session/{team.replace('fixed', 'learnt')}_tokens/mean",
    )
    return Training(trial.name, trial, START, "team", overrides, seeds=SEEDS, within=within)


LEARNT = arm("learnt", "learnt")
# The weights of `LEARNT`, in validation.
FIXED = arm("fixed", "fixed", within=LEARNT.name)
# One agent that generates as much or more.
SCROLLS = arm("scrolls", "scrolls", within=LEARNT.name)
# With the baseline of all depths that RAO has.
RAO = arm("rao", "learnt", "algorithm.adv_estimator=rao_of_each")


TASK = Task(
    "recursion",
    "Recursion",
    (Group("recursion_list", (LEARNT, FIXED, SCROLLS, RAO), tuple(CONTROLS)),),
    (
        Claim("at four windows the recursion gains 0.3 by training", gain(LEARNT), low=0.3, seeds=SEEDS),
        Claim("and ends 0.3 above the best reader of one", success(LEARNT), low=FLOOR + 0.3, seeds=SEEDS),
        Claim("level with one agent that scrolls, or above it", gap(LEARNT, SCROLLS), low=-0.1, seeds=SEEDS),
        Claim("with the answers of other lists it is at chance", success(LEARNT, SHUFFLED), high=0.1, seeds=SEEDS),
        Claim("a depth that is learnt is level with one level", gap(LEARNT, FIXED), low=-0.1, seeds=SEEDS),
        Claim("at eight windows it is 0.2 above one level", gap(LEARNT, FIXED, control("8")), low=0.2, seeds=SEEDS),
    ),
    (LEARNT,),
)
