"""Sharded two-step lookup: a leader and workers, none of which reads the whole table."""

from __future__ import annotations

from benchmarks.evidence.arms import Arm, Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, influence, success
from benchmarks.evidence.tasks.base import Group, Task

TEAM, ALONE = "sharded_lookup", "single_reader"
STEPS = 30
# Exact success of the best guess from the question and one shard: `benchmarks.evidence.floors.floor_of_lookup`.
FLOOR = 0.108
START = Start(
    "lookup",
    (
        *("data", "lookup", "--noise", "0.1", "--worker-noise", "0.15", "--test-rows", "150"),
        *("--warm-up", "hidden=64", "layers=2", "initial=0.1", "steps=1000", "batch=64", "learning_rate=2e-3"),
        *("lessons=15000", "texts=2000", "vocabulary=4096"),
    ),
)
TRIAL = Trial(
    "lookup",
    STEPS,
    "val-core/lookup/acc/mean@1",
    controls={"shuffled": "val-core/lookup_shuffled/acc/mean@1"},
    held_out="validation.parquet",
    settings=(
        "+recipe=lookup/laptop",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.optim.lr=7e-4",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "mas.updates_per_step=1",
        "mas.trajectories.enabled=false",
        *using("agent_grpo"),
    ),
)
PER_ROLE = ("mas.agents.leader.policy=leader", "mas.agents.worker.policy=worker")


def arm(name: str, *overrides: str, workflow: str = TEAM) -> Arm:
    return Training(f"lookup_{name}", TRIAL, START, workflow, overrides)


JOINT = arm("joint")
APART = arm("separate", "mas.policies={leader: {}, worker: {}}", *PER_ROLE)
LEADER = arm("leader_only", "mas.policies={leader: {}, worker: {trainable: false}}", *PER_ROLE)
SCROLLS = arm("scrolls", workflow=ALONE)
ALL = arm("all", "++mas.workflow.args.window=all", workflow=ALONE)

TASK = Task(
    "lookup",
    "Sharded lookup",
    (Group("lookup_team", (JOINT, APART, LEADER, SCROLLS, ALL), ("shuffled",)),),
    (
        Claim("the team ends above the exact floor of one shard", success(JOINT), low=FLOOR),
        Claim("what it knows, it knows from reports", influence(JOINT), low=0.2),
        Claim("workers that make errors are worth training", gap(APART, LEADER), low=0.0),
        Claim("the team is at least level with an agent that scrolls", gap(JOINT, SCROLLS), low=-0.05),
        Claim("one agent with the whole table is at least as good", gap(ALL, JOINT), low=0.0),
    ),
)
