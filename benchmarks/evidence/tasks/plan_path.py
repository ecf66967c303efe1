"""Plan-Path: arms that show what teams learn in it, and how the advantage changes this.

Every arm samples the same number of replies per prompt and prompts per turn: 8 candidates of one act, or 8 sessions.
A single agent acts once per turn, and a team acts twice, so the single agent has twice as many boards.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Arm, Evaluation, Played, Start, Training, Trial, using
from benchmarks.evidence.tasks.base import Group, Task

TEAM, ALONE = "planner_executor", "single_player"
PLANNER, EXECUTOR = "planner", "executor"

STEPS = 20
BOARDS = 8
K = 8
# Cells per side.
SIZE, LARGER = 4, (5, 6)
# Number of seeds of the arms about sizes, roles and uneven rewards. All other arms have five seeds.
FEWER = 3


def start(workflow: str = TEAM, size: int = SIZE) -> Start:
    """Return the start of a workflow. Its held-out boards were not used to choose the settings."""
    return Start(
        f"{workflow}-{size}",
        (
            *("puzzle", "plan_path", "--workflow", workflow, "--size", f"size={size}"),
            *("--train", "4096", "--test", "200", "--first-test", "100000"),
            *("--practice", "min_distance=5", "--noise", "0.65", "--args", "moves=1"),
            *("--warm-up", "steps=900", "batch=128", "learning_rate=2e-3", "lessons=300000"),
            *("texts=10000", "prompts=0", "hidden=64", "layers=2", "vocabulary=1024"),
        ),
    )


# A smaller laptop recipe. Settings that change results are pinned, so results stay comparable if the recipe changes.
TRIAL = Trial(
    "plan_path",
    STEPS,
    "val-core/plan_path/acc/mean@1",
    settings=(
        "+recipe=plan_path/laptop",
        f"trainer.total_training_steps={STEPS}",
        "trainer.test_freq=10",
        f"data.train_batch_size={BOARDS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={BOARDS}",
        "actor_rollout_ref.actor.optim.lr=5e-4",
        "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
        "actor_rollout_ref.actor.optim.min_lr_ratio=0.1",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "actor_rollout_ref.actor.grad_clip=0.5",
        "algorithm.rollout_correction.bypass_mode=true",
        "data.max_prompt_length=32",
        "data.max_response_length=2",
        "mas.workflow.args.moves=1",
        "mas.workflow.args.max_turns=8",
        f"mas.branch.k={K}",
        "mas.branch.commit=uniform",
        "mas.updates_per_step=1",
        "mas.skip_zero_advantage=false",
        "mas.trajectories.enabled=false",
    ),
    per_role=("mas.agents.planner.policy=planner", "mas.agents.executor.policy=executor"),
)
PER_ROLE = ("mas.policies={planner: {}, executor: {}}", *TRIAL.per_role)
SESSIONS = ("mas.branch.k=1", f"actor_rollout_ref.rollout.n={K}")
TWICE_THE_BOARDS = (f"data.train_batch_size={2 * BOARDS}", f"actor_rollout_ref.actor.ppo_mini_batch_size={2 * BOARDS}")
SPARSE = ("+mas.workflow.args.reward=sparse",)


def arm(name: str, *overrides: str, workflow: str = TEAM, size: int = SIZE, keeps: bool = False, seeds: int = 5) -> Arm:
    return Training(name, TRIAL, start(workflow, size), workflow, overrides, keeps, seeds)


DENSE_ARMS = (
    arm("at_grpo_shared"),
    arm("at_grpo_per_role", *PER_ROLE, keeps=True),
    arm("agent_grpo", *SESSIONS, *using("agent_grpo")),
    arm("team_grpo", *SESSIONS, *using("team_grpo")),
    # With one agent, a baseline over the sessions of a task is GRPO.
    arm("single_grpo", *SESSIONS, *TWICE_THE_BOARDS, *using("team_grpo"), workflow=ALONE),
)
SPARSE_ARMS = tuple(
    arm(f"{dense.name}_sparse", *dense.overrides, *SPARSE, workflow=dense.workflow)
    for dense in DENSE_ARMS
    if isinstance(dense, Training)
)

# The arm `at_grpo_shared` on larger boards, with proportionally more turns.
SIZE_ARMS = tuple(
    arm(f"at_grpo_size{size}", f"mas.workflow.args.max_turns={2 * size}", size=size, seeds=FEWER) for size in LARGER
)

# Factors by which the planner's own reward is multiplied.
FACTORS = (1, 10)
ESTIMATORS = ("team_grpo", "agent_grpo")


def uneven(estimator: str, factor: int) -> Arm:
    return arm(
        f"uneven_factor{factor}_{estimator}",
        *PER_ROLE,
        *SESSIONS,
        *using(estimator),
        "mas.workflow.name=UnevenRewards",
        f"mas.workflow.path={Path(__file__).parents[1] / 'uneven.py'}",
        f"+mas.workflow.args.factor={factor}",
        seeds=FEWER,
    )


UNEVEN_ARMS = tuple(uneven(estimator, factor) for factor in FACTORS for estimator in ESTIMATORS)


def alone(trained: str, frozen: str) -> Arm:
    policies = f"mas.policies={{{trained}: {{}}, {frozen}: {{trainable: false}}}}"
    return arm(f"{trained}_alone", policies, *TRIAL.per_role, keeps=True, seeds=FEWER)


TOGETHER = "at_grpo_per_role"


def played_by(name: str, planner: Played, executor: Played) -> Arm:
    return Evaluation(name, TRIAL, start(), TEAM, {PLANNER: planner, EXECUTOR: executor}, FEWER)


ROLE_ARMS = (
    played_by("roles_kept", Played(TOGETHER, PLANNER), Played(TOGETHER, EXECUTOR)),
    played_by("roles_swapped", Played(TOGETHER, EXECUTOR), Played(TOGETHER, PLANNER)),
    alone(PLANNER, EXECUTOR),
    alone(EXECUTOR, PLANNER),
    played_by("roles_combined", Played("planner_alone", PLANNER), Played("executor_alone", EXECUTOR)),
)
TASK = Task(
    "plan_path",
    "Plan-Path",
    tuple(
        Group(name, arms)
        for name, arms in {
            "dense": DENSE_ARMS,
            "roles": ROLE_ARMS,
            "uneven": UNEVEN_ARMS,
            "sizes": SIZE_ARMS,
            "sparse": SPARSE_ARMS,
        }.items()
    ),
)
