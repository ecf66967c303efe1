"""Split clues: a team whose agents need each other, and the ways in which an advantage can go wrong.

A step has 16 tasks with 16 replies per agent: 16 sessions, or 16 candidates. An arm with continuation generates more,
so it has fewer tasks per step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.evidence.arms import Arm, Evaluation, Played, Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, influence, success
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

TEAM = "split_clues"
SENDER, RECEIVER = "sender", "receiver"
STEPS = 32
TASKS, K = 16, 16
# One part of the clues leaves three letters, which are equally likely, so this floor is exact.
FLOOR = 1 / 3


# These are the defaults. They are pinned, because they change results.
WARM_UP = (
    *("--warm-up", "hidden=32", "layers=2", "initial=0.1", "steps=1000", "batch=96", "learning_rate=3e-3"),
    *("lessons=60000", "texts=100", "vocabulary=259"),
)


def start(name: str, *options: str) -> Start:
    return Start(f"{TEAM}-{name}", ("data", TEAM, "--noise", "0.6", "--test-rows", "140", *WARM_UP, *options))


ONE_ROUND, TWO_ROUNDS = start("one-round"), start("two-rounds", "--rounds", "2")
THREE_PARTS = start("three-parts", "--parts", "3")


TRIAL = Trial(
    TEAM,
    STEPS,
    "val-core/split_clues/acc/mean@1",
    controls={"shuffled": "val-core/split_clues_shuffled/acc/mean@1"},
    settings=(
        "+recipe=split_clues/laptop",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        f"data.train_batch_size={TASKS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
        f"actor_rollout_ref.rollout.n={K}",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "mas.updates_per_step=1",
        "mas.trajectories.enabled=false",
    ),
    per_role=("++mas.agents.sender.policy=sender", "++mas.agents.receiver.policy=receiver"),
)
SEPARATE = ("mas.policies={sender: {}, receiver: {}}", *TRIAL.per_role)


def arm(name: str, *overrides: str, begin: Start = ONE_ROUND, keeps: bool = False, trial: Trial = TRIAL) -> Arm:
    return Training(f"clues_{name}", trial, begin, TEAM, overrides, keeps)


def tasks(count: int) -> tuple[str, ...]:
    return (f"data.train_batch_size={count}", f"actor_rollout_ref.actor.ppo_mini_batch_size={count}")


AGENT = using("agent_grpo")
SHARED, APART = arm("shared", *AGENT), arm("separate", *AGENT, *SEPARATE, keeps=True)
TEAM_ARMS = (
    SHARED,
    APART,
    # The ceiling: the receiver alone reads all clues.
    arm("all", *AGENT, "++mas.workflow.args.control=all"),
    Evaluation(
        "clues_other_partner",
        TRIAL,
        ONE_ROUND,
        TEAM,
        {SENDER: Played("clues_separate", SENDER), RECEIVER: Played("clues_separate", RECEIVER, later=True)},
    ),
)

# One frozen base with an adapter per agent, to compare with full weights per agent.
ADAPTED = arm(
    "separate_adapters",
    *AGENT,
    "mas.policies={sender: {adapter_of: main}, receiver: {adapter_of: main}}",
    *TRIAL.per_role,
    "actor_rollout_ref.model.lora_rank=16",
    "actor_rollout_ref.model.lora_alpha=32",
    "actor_rollout_ref.actor.optim.lr=4e-3",
)
ADAPTER_ARMS = (APART, ADAPTED)

# The asynchronous modes train on the same number of tasks, but each task is sampled one step earlier.
COLOCATED = arm("colocate_async", *AGENT, "+mas/mode=colocate_async")
APART_ENGINES = arm(
    "separate_async",
    *AGENT,
    "+mas/mode=separate_async",
    "++mas.pools.engines={n_gpus_per_node: 1}",
    "++mas.policies.main.engines=engines",
    "ray_kwargs.ray_init.num_gpus=2",
)
AHEAD_ARMS = (SHARED, COLOCATED, APART_ENGINES)

# `BY_GATEWAY` is the same team as a program that calls the gateway by HTTP, without the workflow's arguments. `AGAIN`
# repeats the workflow on the same machine, because a warm-up gives other weights on another kind of processor.
AGAIN = arm("shared_again", *AGENT)
PROGRAM = Path(__file__).parents[1] / "clues_program.py"
BY_GATEWAY = arm("gateway", *AGENT, "mas.workflow.name=clues", f"mas.workflow.path={PROGRAM}", "mas.workflow.args=null")

# These arms sample candidates of one act instead of sessions. Without continuation, only the last act has its own
# score. Probes are replies, too, so an arm with continuation has fewer tasks, for the same number of generated replies.
BRANCH = ("actor_rollout_ref.rollout.n=1", f"mas.branch.k={K}", "mas.branch.commit=uniform", *using("at_grpo"))
C3 = (*BRANCH, *using("at_grpo", "baseline=leave_one_out", "scale=none")[1:], "++mas.workflow.args.continuations=1")
# The variant `reward_only` of C3's released code, which divides advantages by the deviation.
C3_SCALED = (*BRANCH, "++mas.advantage.deviation=population", "++mas.workflow.args.continuations=1")
LEFT_OUT = (*AGENT, "++mas.workflow.args.left_out=1")
TWICE = "++mas.workflow.args.rounds=2"
CREDIT_ARMS = (
    SHARED,
    arm("myopic", *BRANCH),
    arm("continued", *C3, *tasks(11)),
    arm("continued_scaled", *C3_SCALED, *tasks(11)),
    # One of the three replies in a session is a probe, in which the receiver acts without the message.
    arm("left_out", *LEFT_OUT, *tasks(11)),
)
TWO_ROUND_ARMS = (
    arm("two_rounds_sessions", TWICE, *AGENT, begin=TWO_ROUNDS),
    arm("two_rounds_myopic", TWICE, *BRANCH, begin=TWO_ROUNDS),
    arm("two_rounds_continued", TWICE, *C3, *tasks(6), begin=TWO_ROUNDS),
)

# With two senders and a receiver, the team's reward says less about each message. The probe without the first message
# repeats two acts, and the probe without the second message repeats one act: six replies per session instead of three.
HERE = Path(__file__).parents[1] / "uneven_clues.py"
RATED = ("mas.workflow.name=RatedClues", f"mas.workflow.path={HERE.with_name('rated_clues.py')}")


def of_three(name: str, *overrides: str) -> Arm:
    return arm(f"three_{name}", "++mas.workflow.args.parts=3", *overrides, begin=THREE_PARTS)


THREE_ARMS = (
    of_three("sessions", *AGENT),
    of_three("left_out", *LEFT_OUT, *tasks(8)),
    of_three("rated", *AGENT, *RATED),
    # The control: these ratings are coin flips.
    of_three("coin", *AGENT, *RATED, "++mas.workflow.args.errs=0.5"),
)

# The sender's rewards differ from the receiver's in their mean or in their scale, or the sender is called rarely.
UNEVEN = ("mas.workflow.name=UnevenClues", f"mas.workflow.path={HERE}")
OFFSET = (*UNEVEN, "++mas.workflow.args.offset=1.5")
SCALED = (f"mas.plugins=[{HERE}]", *using("scaled_team_grpo"))
RARE = (*UNEVEN, "++mas.workflow.args.called=0.1")
# In sessions that do not call the sender, the receiver reads the true clues, so that it learns to read messages.
STAND_IN = (*RARE, "++mas.workflow.args.otherwise=clues")


def shared_and_separate(name: str, *overrides: str) -> tuple[Arm, Arm]:
    return arm(f"{name}_shared", *overrides), arm(f"{name}_separate", *overrides, *SEPARATE)


OFFSET_ARMS = (
    *shared_and_separate("offset_agent", *OFFSET, *AGENT),
    *shared_and_separate("offset_team", *OFFSET, *using("team_grpo")),
    *shared_and_separate("offset_rae", *OFFSET, *using("agent_rae")),
)
SCALE_ARMS = (SHARED, APART, *shared_and_separate("scale_team", *SCALED))


def lasting(steps: int) -> Trial:
    settings = (*TRIAL.settings, f"trainer.total_training_steps={steps}", f"trainer.test_freq={steps}")
    return replace(TRIAL, steps=steps, settings=settings)


def rare(name: str, steps: int, *overrides: str) -> tuple[Arm, ...]:
    ways = {
        "agent": AGENT,
        "team": using("team_grpo"),
        "rae": using("agent_rae"),
        "shrunk": using("agent_grpo", "shrinkage=4"),
    }
    return tuple(arm(f"{name}_{way}", *overrides, *options, trial=lasting(steps)) for way, options in ways.items())


RARE_ARMS = rare("rare", 96, *RARE)
STAND_IN_ARMS = rare("stand_in", 40, *STAND_IN)

CLAIMS = (
    Claim("a team whose members have different clues ends above the exact floor of 1/3", success(SHARED), low=FLOOR),
    Claim("with shuffled messages it is at the floor", success(SHARED, control("shuffled")), low=0.27, high=0.39),
    Claim("so messages are worth at least 0.3", influence(SHARED), low=0.3),
    Claim("a receiver of another seed costs at most 0.1", gap(TEAM_ARMS[3], APART), low=-0.1),
    Claim("one agent with all clues is at least as good", gap(TEAM_ARMS[2], SHARED), low=0.0),
    Claim("an adapter per agent on one frozen base ends above the floor", success(ADAPTED), low=FLOOR),
    Claim("by messages, which are worth at least 0.3", influence(ADAPTED), low=0.3),
    Claim("and costs at most 0.1 against full weights per agent", gap(ADAPTED, APART), low=-0.1),
    Claim("training on tasks of the step before costs at most 0.1, colocated", gap(COLOCATED, SHARED), low=-0.1),
    Claim("and with engines on devices of their own", gap(APART_ENGINES, SHARED), low=-0.1),
    Claim("a program that talks to the gateway learns as much", gap(BY_GATEWAY, AGAIN), low=-0.1),
    Claim("by messages, which are worth at least 0.3", influence(BY_GATEWAY), low=0.3),
    Claim("branching on an act's own score is worse than sessions", gap(CREDIT_ARMS[1], SHARED), high=0.0),
    Claim("continuation repairs it", gap(CREDIT_ARMS[2], CREDIT_ARMS[1]), low=0.0),
    Claim("but is not above sessions at equal replies", gap(CREDIT_ARMS[2], SHARED), high=0.02),
    Claim(
        "scaled as in C3's code it is within 0.1 of unscaled", gap(CREDIT_ARMS[3], CREDIT_ARMS[2]), low=-0.1, high=0.1
    ),
    Claim("and below sessions at equal replies, too", gap(CREDIT_ARMS[3], SHARED), high=0.0),
    Claim("less the team's reward without the message: below sessions", gap(CREDIT_ARMS[4], SHARED), high=0.0),
    Claim("over two rounds continuation repairs it, too", gap(TWO_ROUND_ARMS[2], TWO_ROUND_ARMS[1]), low=0.0),
    Claim("and is level with sessions", gap(TWO_ROUND_ARMS[2], TWO_ROUND_ARMS[0]), low=-0.05),
    Claim("two senders learn by what the team is without a message", success(THREE_ARMS[1]), low=FLOOR),
    Claim("but do not end above sessions at equal replies", gap(THREE_ARMS[1], THREE_ARMS[0]), high=0.02),
    Claim("ratings, one of five wrong, lift them above sessions", gap(THREE_ARMS[2], THREE_ARMS[0]), low=0.0),
    Claim("ratings by a coin do not", gap(THREE_ARMS[3], THREE_ARMS[0]), high=0.02),
)
UNEVEN_CLAIMS = (
    Claim("an offset of 3 sigma costs `team_grpo`, one policy", gap(OFFSET_ARMS[2], OFFSET_ARMS[0]), high=0.0),
    Claim("and with a policy per agent", gap(OFFSET_ARMS[3], OFFSET_ARMS[1]), high=0.0),
    Claim("a running baseline per role removes it, one policy", gap(OFFSET_ARMS[4], OFFSET_ARMS[2]), low=0.0),
    Claim("and with a policy per agent", gap(OFFSET_ARMS[5], OFFSET_ARMS[3]), low=0.0),
    Claim("scale x10 alone costs `team_grpo`, one policy", gap(SCALE_ARMS[2], SHARED), high=0.0),
    Claim("and costs nothing with a policy per agent", gap(SCALE_ARMS[3], APART), low=-0.05, high=0.05),
    Claim("called in 10 %, an agent learns less by `agent_grpo`", gap(RARE_ARMS[0], RARE_ARMS[1]), high=0.0),
    Claim("shrinkage is at least level with `agent_grpo`", gap(RARE_ARMS[3], RARE_ARMS[0]), low=-0.02),
    Claim("and with `team_grpo`", gap(RARE_ARMS[3], RARE_ARMS[1]), low=-0.02),
    Claim(
        "a stand-in called in 10 %: `agent_grpo` below `team_grpo`", gap(STAND_IN_ARMS[0], STAND_IN_ARMS[1]), high=0.0
    ),
    Claim("shrinkage is at least level with `agent_grpo`", gap(STAND_IN_ARMS[3], STAND_IN_ARMS[0]), low=-0.02),
    Claim("and with `team_grpo`", gap(STAND_IN_ARMS[3], STAND_IN_ARMS[1]), low=-0.02),
)
TASK = Task(
    "clues",
    "Split clues",
    (
        Group("clues_team", TEAM_ARMS, ("shuffled",)),
        Group("clues_adapters", ADAPTER_ARMS, ("shuffled",)),
        Group("clues_ahead", AHEAD_ARMS, ("shuffled",)),
        Group("clues_by_gateway", (AGAIN, BY_GATEWAY), ("shuffled",)),
        Group("clues_credit", CREDIT_ARMS, ("shuffled",)),
        Group("clues_two_rounds", TWO_ROUND_ARMS, ("shuffled",)),
        Group("clues_three", THREE_ARMS, ("shuffled",)),
    ),
    CLAIMS,
    (SHARED,),
)
UNEVEN_TASK = Task(
    "uneven_clues",
    "Uneven agents",
    (
        Group("clues_offset", OFFSET_ARMS),
        Group("clues_scale", SCALE_ARMS),
        Group("clues_rare", RARE_ARMS),
        Group("clues_stand_in", STAND_IN_ARMS),
    ),
    UNEVEN_CLAIMS,
)
