"""Guide and driver: Plan-Path with a split view, in which neither role can do the other role's part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.evidence.arms import Arm, Evaluation, Played, Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, influence, success
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

TEAM = "guide_driver"
GUIDE, DRIVER = "guide", "driver"
STEPS = 24
# The exact success of the best driver without messages on the held-out boards (`floors.blind_bound`).
FLOOR = 0.636


# The default options of the warm-up, written out because a change of the defaults would change the results.
WARM_UP = (
    *("--warm-up", "hidden=32", "layers=2", "initial=0.1", "steps=1000", "batch=128", "learning_rate=3e-3"),
    *("lessons=120000", "texts=100", "vocabulary=259"),
)


def start(name: str, *options: str) -> Start:
    return Start(f"{TEAM}-{name}", ("data", TEAM, "--noise", "0.5", "--test-rows", "200", *WARM_UP, *options))


TOGETHER = start("team")
TRIAL = Trial(
    TEAM,
    STEPS,
    "val-core/guide_driver/acc/mean@1",
    controls={"shuffled": "val-core/guide_driver_shuffled/acc/mean@1"},
    settings=(
        "+recipe=guide_driver/laptop",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "mas.updates_per_step=1",
        "mas.trajectories.enabled=false",
    ),
    per_role=("mas.agents.guide.policy=guide", "mas.agents.driver.policy=driver"),
)
SEPARATE = ("mas.policies={guide: {}, driver: {}}", *TRIAL.per_role)
AGENT = using("agent_grpo")


def arm(name: str, *overrides: str, begin: Start = TOGETHER, keeps: bool = False) -> Arm:
    return Training(f"guide_{name}", TRIAL, begin, TEAM, overrides, keeps)


def played(name: str, guide: Played, driver: Played) -> Arm:
    return Evaluation(f"guide_{name}", TRIAL, TOGETHER, TEAM, {GUIDE: guide, DRIVER: driver})


def alone(kind: str) -> Arm:
    begin = start(kind, "--control", kind)
    return arm(kind, *AGENT, f"++mas.workflow.args.control={kind}", begin=begin)


SHARED, APART = arm("shared", *AGENT), arm("separate", *AGENT, *SEPARATE, keeps=True)
ALL, PART = alone("all"), alone("part")
SWAPPED = played("swapped", Played(APART.name, DRIVER), Played(APART.name, GUIDE))
OTHER = played("other_partner", Played(APART.name, GUIDE), Played(APART.name, DRIVER, later=True))

# prime-rl's gate: another board replaces a board whose sessions all end alike. If this happens to a third of the
# boards, 11 trained boards take as many replies as 16 boards without the gate.
GATE = ("mas.filter.drop=uniform", "mas.filter.by=acc", "mas.filter.refill=true")
ADMITTED = arm("admitted", *AGENT, *GATE, "data.train_batch_size=11", "actor_rollout_ref.actor.ppo_mini_batch_size=11")

# The guide acts once per session and the driver up to six times, so weights per act and per session differ.
OFFSET = (
    "mas.workflow.name=UnevenGuide",
    f"mas.workflow.path={Path(__file__).parents[1] / 'uneven_guide.py'}",
    "++mas.workflow.args.offset=1.5",
)
OFFSET_AGENT = arm("offset_agent", *OFFSET, *AGENT)
OFFSET_TEAM = arm("offset_team", *OFFSET, *using("team_grpo"))
OFFSET_PER_ACT = arm("offset_team_per_act", *OFFSET, *using("team_grpo", "weighting=per_act"))

# In this arm the guide sees the map as a picture. In its control, the guide sees the picture of another board.
PICTURES = "+recipe=guide_driver/laptop_picture"
SEEING_TRIAL = replace(TRIAL, settings=(PICTURES, *TRIAL.settings[1:]))
# The noise is 0.25, because with half of the demonstrations wrong the guide does not learn to read columns.
LONGER = ("steps=1200" if setting.startswith("steps=") else setting for setting in WARM_UP)
SEEING_START = Start(
    f"{TEAM}-pictures", ("data", TEAM, "--map", "picture", "--noise", "0.25", "--test-rows", "200", *LONGER)
)
SEEING = Training("guide_pictures", SEEING_TRIAL, SEEING_START, TEAM, AGENT, seeds=3)

TASK = Task(
    "guide",
    "Guide and driver",
    (
        Group("guide_team", (SHARED, APART, ALL, PART, SWAPPED, OTHER), ("shuffled",)),
        Group("guide_admission", (SHARED, ADMITTED)),
        Group("guide_counting", (OFFSET_AGENT, OFFSET_TEAM, OFFSET_PER_ACT)),
        Group("guide_sees", (SEEING, PART), ("shuffled",)),
    ),
    (
        Claim("the team ends above what any driver without messages reaches", success(SHARED), low=FLOOR),
        Claim("and above a driver that is trained without messages", gap(SHARED, PART), low=0.0),
        Claim("messages are worth at least 0.3", influence(SHARED), low=0.3),
        Claim("with shuffled messages it is below that bound", success(SHARED, control("shuffled")), high=FLOOR),
        Claim("swapped roles fail", success(SWAPPED), high=0.2),
        Claim("a driver of another seed costs at most 0.1", gap(OTHER, APART), low=-0.1),
        Claim("one agent with the whole view is at least as good", gap(ALL, SHARED), low=0.0),
        Claim("a gate for boards is level at equal replies", gap(ADMITTED, SHARED), low=-0.05, high=0.05),
        Claim("an offset of 1.5 on the guide costs `team_grpo`", gap(OFFSET_TEAM, OFFSET_AGENT), high=0.0),
        Claim("with pictures the team ends above that bound", success(SEEING), low=FLOOR, seeds=3),
        Claim("and with those of other boards below it", success(SEEING, control("shuffled")), high=FLOOR, seeds=3),
        Claim("per act or per session makes no difference", gap(OFFSET_PER_ACT, OFFSET_TEAM), low=-0.05, high=0.05),
    ),
    (SHARED,),
)
