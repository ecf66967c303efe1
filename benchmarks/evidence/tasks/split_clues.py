"""Split clues: a team that needs each other, and the ways in which an advantage can go wrong.

A step has 16 tasks with 16 replies per agent: 16 sessions, or 16 candidates. An arm with continuation generates more,
so it has fewer tasks per step.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Arm, Evaluation, Played, Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, influence, success
from benchmarks.evidence.tasks.base import Group, Task

TEAM = "split_clues"
SENDER, RECEIVER = "sender", "receiver"
STEPS = 60
TASKS, K = 16, 16
# One part leaves three letters, each as often right: exact.
FLOOR = 1 / 3


def start(name: str, *options: str) -> Start:
    return Start(f"{TEAM}-{name}", ("data", TEAM, "--noise", "0.6", *options))


ONE_ROUND, TWO_ROUNDS = start("one-round"), start("two-rounds", "--rounds", "2")

TRIAL = Trial(
    TEAM,
    STEPS,
    "val-core/split_clues/acc/mean@1",
    controls={"shuffled": "val-core/split_clues_shuffled/acc/mean@1"},
    settings=(
        "+recipe=split_clues/laptop",
        f"trainer.total_training_steps={STEPS}",
        "trainer.test_freq=20",
        f"data.train_batch_size={TASKS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
        f"actor_rollout_ref.rollout.n={K}",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "mas.updates_per_step=1",
        "mas.trajectories.enabled=false",
    ),
    per_role=("mas.agents.sender.policy=sender", "mas.agents.receiver.policy=receiver"),
)
SEPARATE = ("mas.policies={sender: {}, receiver: {}}", *TRIAL.per_role)


def arm(name: str, *overrides: str, begin: Start = ONE_ROUND, keeps: bool = False) -> Arm:
    return Training(f"clues_{name}", TRIAL, begin, TEAM, overrides, keeps)


AGENT = using("agent_grpo")
TEAM_ARMS = (
    arm("shared", *AGENT),
    arm("separate", *AGENT, *SEPARATE, keeps=True),
    Evaluation(
        "clues_other_partner",
        TRIAL,
        ONE_ROUND,
        TEAM,
        {SENDER: Played("clues_separate", SENDER), RECEIVER: Played("clues_separate", RECEIVER, later=True)},
    ),
)

# T3: the sender's rewards differ from the receiver's in their mean, or in their scale, or it is called rarely.
HERE = Path(__file__).parents[1] / "uneven_clues.py"
UNEVEN = ("mas.workflow.name=UnevenClues", f"mas.workflow.path={HERE}")
OFFSET = (*UNEVEN, "+mas.workflow.args.offset=1.5")
SCALED = (f"mas.plugins=[{HERE}]", *using("scaled_team_grpo"))
RARE = (*UNEVEN, "+mas.workflow.args.called=0.1")


def shared_and_separate(name: str, *overrides: str) -> tuple[Arm, Arm]:
    return arm(f"{name}_shared", *overrides), arm(f"{name}_separate", *overrides, *SEPARATE)


OFFSET_ARMS = (
    *shared_and_separate("offset_agent", *OFFSET, *AGENT),
    *shared_and_separate("offset_team", *OFFSET, *using("team_grpo")),
    *shared_and_separate("offset_rae", *OFFSET, *using("agent_rae")),
)
SCALE_ARMS = (TEAM_ARMS[0], TEAM_ARMS[1], *shared_and_separate("scale_team", *SCALED))
RARE_ARMS = (
    arm("rare_agent", *RARE, *AGENT),
    arm("rare_team", *RARE, *using("team_grpo")),
    arm("rare_rae", *RARE, *using("agent_rae")),
    arm("rare_shrunk", *RARE, *using("agent_grpo", "shrinkage=4")),
)

CLAIMS = (
    Claim(
        "A team whose members have different clues learns to use them: above the exact floor",
        success("clues_shared"),
        low=FLOOR,
    ),
    Claim(
        "All of the gain is in the messages: shuffled, the team falls to the floor",
        success("clues_shared", lambda run: list(run["controls"]["shuffled"].values())[-1]),
        low=FLOOR - 0.06,
        high=FLOOR + 0.06,
    ),
    Claim("Influence of the messages", influence("clues_shared"), low=0.3),
    Claim(
        "What the agents learn is a meaning, not a convention of two: a partner of another seed costs little",
        gap("clues_other_partner", "clues_separate"),
        low=-0.1,
    ),
    Claim(
        "A mean offset of 3 sigma costs team_grpo, with one shared policy",
        gap("clues_offset_team_shared", "clues_offset_agent_shared"),
        high=0.0,
    ),
    Claim(
        "... and with a policy per agent", gap("clues_offset_team_separate", "clues_offset_agent_separate"), high=0.0
    ),
    Claim(
        "A running baseline per role removes the offset, too",
        gap("clues_offset_rae_shared", "clues_offset_team_shared"),
        low=0.0,
    ),
    Claim(
        "Scale alone (x10) costs team_grpo with one shared policy",
        gap("clues_scale_team_shared", "clues_shared"),
        high=0.0,
    ),
    Claim(
        "... and nothing with a policy per agent, where Adam divides it out",
        gap("clues_scale_team_separate", "clues_separate"),
        low=-0.05,
        high=0.05,
    ),
    Claim(
        "A rarely called agent learns less by agent_grpo than by team_grpo",
        gap("clues_rare_agent", "clues_rare_team"),
        high=0.0,
    ),
    Claim(
        "... and with shrinkage at least as well as by agent_grpo",
        gap("clues_rare_shrunk", "clues_rare_agent"),
        low=-0.02,
    ),
    Claim("... and at least as well as by team_grpo", gap("clues_rare_shrunk", "clues_rare_team"), low=-0.02),
)
TASK = Task(
    "clues",
    "Split clues",
    (
        Group("clues_team", TEAM_ARMS, ("shuffled",)),
        Group("clues_offset", OFFSET_ARMS),
        Group("clues_scale", SCALE_ARMS),
        Group("clues_rare", RARE_ARMS),
    ),
    CLAIMS,
)
