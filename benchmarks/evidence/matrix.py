"""The arms of the experiments, and the order of the runs.

Every arm samples the same number of replies per prompt and prompts per turn: 8 candidates of one act, or 8 sessions.
The single agent acts once per turn instead of twice, so it has twice the boards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEAM, ALONE = "planner_executor", "single_player"
PLANNER, EXECUTOR = "planner", "executor"

STEPS = 20
BOARDS = 8
K = 8
# The held-out boards have higher numbers than those that the settings were chosen on.
START = (
    *("--train", "4096", "--test", "200", "--first-test", "100000"),
    *("--practice", "min_distance=5", "--noise", "0.65", "--args", "moves=1"),
    *("--warm-up", "steps=900", "batch=128", "learning_rate=2e-3", "lessons=300000"),
    *("texts=10000", "prompts=0", "hidden=64", "layers=2", "vocabulary=1024"),
)
# Cells per side.
SIZE, LARGER = 4, (5, 6)
# A smaller laptop recipe. Settings that change results are pinned, so that they stay comparable if the recipe changes.
SETTINGS = (
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
)

PER_ROLE = (
    "mas.policies={planner: {}, executor: {}}",
    "mas.agents.planner.policy=planner",
    "mas.agents.executor.policy=executor",
)
SESSIONS = ("mas.branch.k=1", f"actor_rollout_ref.rollout.n={K}")
TWICE_THE_BOARDS = (f"data.train_batch_size={2 * BOARDS}", f"actor_rollout_ref.actor.ppo_mini_batch_size={2 * BOARDS}")
SPARSE = ("+mas.workflow.args.reward=sparse",)


@dataclass(frozen=True)
class Training:
    """One arm: a run of `verl.trainer.main_ppo` from the seed's warmed-up model."""

    name: str
    workflow: str
    overrides: tuple[str, ...]
    # Whether the policies are saved, for evaluations.
    keeps: bool = False
    size: int = SIZE
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """A validation of two trained policies: of each role the arm and the policy that plays it."""

    name: str
    planner: tuple[str, str]
    executor: tuple[str, str]

    @property
    def roles(self) -> dict[str, tuple[str, str]]:
        return {PLANNER: self.planner, EXECUTOR: self.executor}

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm for arm, _ in self.roles.values()))


Arm = Training | Evaluation


def using(estimator: str) -> tuple[str, ...]:
    return (f"algorithm.adv_estimator={estimator}",)


DENSE_ARMS = (
    Training("at_grpo_shared", TEAM, ()),
    Training("at_grpo_per_role", TEAM, PER_ROLE, keeps=True),
    Training("agent_grpo", TEAM, (*SESSIONS, *using("agent_grpo"))),
    Training("team_grpo", TEAM, (*SESSIONS, *using("team_grpo"))),
    # With one agent, a baseline over the sessions of a task is GRPO.
    Training("single_grpo", ALONE, (*SESSIONS, *TWICE_THE_BOARDS, *using("team_grpo"))),
)
SPARSE_ARMS = tuple(Training(f"{arm.name}_sparse", arm.workflow, (*arm.overrides, *SPARSE)) for arm in DENSE_ARMS)

# The first arm on larger boards, with proportionally more turns.
SIZE_ARMS = tuple(
    Training(f"at_grpo_size{size}", TEAM, (f"mas.workflow.args.max_turns={2 * size}",), size=size) for size in LARGER
)

# The planner's own reward times a factor.
FACTORS = (1, 10)
ESTIMATORS = ("team_grpo", "agent_grpo")


def uneven(estimator: str, factor: int) -> Training:
    return Training(
        f"uneven_factor{factor}_{estimator}",
        TEAM,
        (
            *PER_ROLE,
            *SESSIONS,
            *using(estimator),
            "mas.workflow.name=UnevenRewards",
            f"mas.workflow.path={Path(__file__).with_name('uneven.py')}",
            f"+mas.workflow.args.factor={factor}",
        ),
    )


UNEVEN_ARMS = tuple(uneven(estimator, factor) for factor in FACTORS for estimator in ESTIMATORS)


def alone(trained: str, frozen: str) -> Training:
    policies = f"mas.policies={{{trained}: {{}}, {frozen}: {{trainable: false}}}}"
    return Training(f"{trained}_alone", TEAM, (policies, *PER_ROLE[1:]), keeps=True)


TOGETHER = "at_grpo_per_role"
ROLE_ARMS: tuple[Arm, ...] = (
    Evaluation("roles_kept", planner=(TOGETHER, PLANNER), executor=(TOGETHER, EXECUTOR)),
    Evaluation("roles_swapped", planner=(TOGETHER, EXECUTOR), executor=(TOGETHER, PLANNER)),
    alone(PLANNER, EXECUTOR),
    alone(EXECUTOR, PLANNER),
    Evaluation("roles_combined", planner=("planner_alone", PLANNER), executor=("executor_alone", EXECUTOR)),
)
ARMS = {arm.name: arm for arm in (*DENSE_ARMS, *SPARSE_ARMS, *SIZE_ARMS, *UNEVEN_ARMS, *ROLE_ARMS)}
# Seeds of the arms that differ in their advantage, and of the others.
SEEDS, FEWER = 5, 3


@dataclass(frozen=True)
class Piece:
    """One run: an arm with a seed."""

    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        return f"{self.arm.name}-{self.seed}"

    @property
    def needs(self) -> list[Piece]:
        return [Piece(ARMS[name], self.seed) for name in self.arm.needs]


def pieces() -> Iterator[Piece]:
    """The whole matrix, the most important first; by seeds, so that all arms can be compared at any time."""
    order: list[tuple[tuple[Arm, ...], range]] = [
        (DENSE_ARMS, range(1)),
        (ROLE_ARMS, range(1)),
        (UNEVEN_ARMS, range(1)),
        (SIZE_ARMS, range(1)),
        (DENSE_ARMS, range(1, SEEDS)),
        (SPARSE_ARMS, range(SEEDS)),
        (UNEVEN_ARMS, range(1, FEWER)),
        (SIZE_ARMS, range(1, FEWER)),
        (ROLE_ARMS, range(1, FEWER)),
    ]
    for arms, seeds in order:
        for seed in seeds:
            for arm in arms:
                yield Piece(arm, seed)
