"""Slippery Plan-Path: when does training on candidates of one act beat training on whole sessions?

One agent plays, so the arms differ in nothing else. All arms sample about equally many replies per step: 8 sessions per
board on 8 boards, or 8 candidates per act on 8 boards, or 4 candidates on 3 boards with continuation. Continuation has
fewer because its probes are replies too.
"""

from __future__ import annotations

from benchmarks.evidence.arms import Arm, Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, interaction
from benchmarks.evidence.tasks.base import Group, Task

ALONE = "single_player"
STEPS, BOARDS, K = 20, 8, 8
SLIPS = (0.0, 0.4)


def start(slip: float) -> Start:
    return Start(
        f"slippery-{slip:g}",
        (
            *("puzzle", "plan_path", "--workflow", ALONE, "--size", "size=4", f"slip={slip:g}"),
            *("--train", "4096", "--test", "200", "--first-test", "100000"),
            *("--practice", "min_distance=5", "--noise", "0.72", "--args", "moves=1"),
            *("--warm-up", "steps=900", "batch=128", "learning_rate=2e-3", "lessons=300000"),
            *("texts=10000", "prompts=0", "hidden=64", "layers=2", "vocabulary=1024"),
        ),
    )


TRIAL = Trial(
    "slippery",
    STEPS,
    "val-core/plan_path/acc/mean@1",
    settings=(
        "+recipe=plan_path/laptop",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        f"data.train_batch_size={BOARDS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={BOARDS}",
        "actor_rollout_ref.actor.optim.lr=5e-4",
        "actor_rollout_ref.actor.grad_clip=0.5",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "mas.workflow.args.max_turns=16",
        f"mas.branch.k={K}",
        "mas.branch.commit=uniform",
        "mas.updates_per_step=1",
        "mas.skip_zero_advantage=false",
        "mas.trajectories.enabled=false",
    ),
)
SESSIONS = ("mas.branch.k=1", f"actor_rollout_ref.rollout.n={K}")
CONTINUED = (
    *using("at_grpo", "baseline=leave_one_out", "scale=none"),
    "++mas.workflow.args.continuations=1",
    "mas.branch.k=4",
    "data.train_batch_size=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
)


def arms(slip: float, reward: str) -> tuple[Arm, ...]:
    """Return the arms with sessions and with branches. With the sparse reward, add the arm with continuation."""
    kinds = {"sessions": (*SESSIONS, *using("agent_grpo")), "branch": ()}
    if reward == "sparse":
        kinds["continued"] = CONTINUED
    return tuple(
        Training(
            f"slip{slip:g}_{reward}_{kind}",
            TRIAL,
            start(slip),
            ALONE,
            (f"++mas.workflow.args.reward={reward}", *overrides),
        )
        for kind, overrides in kinds.items()
    )


DENSE = {slip: arms(slip, "dense") for slip in SLIPS}
SPARSE = {slip: arms(slip, "sparse") for slip in SLIPS}
FIRM, LOOSE = SLIPS

TASK = Task(
    "slippery",
    "Slippery Plan-Path",
    (
        *(Group(f"slip{slip:g}_dense", DENSE[slip]) for slip in SLIPS),
        *(Group(f"slip{slip:g}_sparse", SPARSE[slip]) for slip in SLIPS),
    ),
    (
        Claim(
            "slips raise the gain of branching over sessions, dense",
            interaction((DENSE[LOOSE][1], DENSE[LOOSE][0]), (DENSE[FIRM][1], DENSE[FIRM][0])),
            low=0.0,
        ),
        Claim("sparse and firm: branching loses to sessions", gap(SPARSE[FIRM][1], SPARSE[FIRM][0]), high=0.0),
        Claim("sparse and slippery, too", gap(SPARSE[LOOSE][1], SPARSE[LOOSE][0]), high=0.0),
        Claim("continuation repairs it, firm", gap(SPARSE[FIRM][2], SPARSE[FIRM][1]), low=0.0),
        Claim("and slippery", gap(SPARSE[LOOSE][2], SPARSE[LOOSE][1]), low=0.0),
        Claim(
            "slips raise the gain of continuation over sessions",
            interaction((SPARSE[LOOSE][2], SPARSE[LOOSE][0]), (SPARSE[FIRM][2], SPARSE[FIRM][0])),
            low=0.0,
        ),
    ),
)
