"""Peers without labels: two models of different starts reward each other by agreement, on short sums.

A model is blind in half of the tasks, where it mostly writes the result plus one, or in all. The halves of two peers
differ.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, success
from benchmarks.evidence.tables import Run
from benchmarks.evidence.tasks.base import Group, Task

STEPS, EVERY = 20, 5
# Exact texts of single numbers: no mathematics is needed to compare them.
TRIAL = Trial(
    "peers",
    STEPS,
    "val-core/arithmetic/acc/mean@1",
    settings=(
        "+recipe=peers/laptop",
        "++mas.workflow.args.score=em",
        "mas.trajectories.enabled=false",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={EVERY}",
    ),
    controls={"agreement": "val-aux/arithmetic/agreement/mean@1"},
)
REWARDS = f"mas.workflow.path={Path(__file__).parents[1] / 'peer_rewards.py'}"
MODEL = "{}mas.policies.{}.overrides.model.path=${{actor_rollout_ref.model.path}}/{}"
HIGH = MODEL.format("", "b", "high")
ALL = (MODEL.format("++", "a", "all"), MODEL.format("", "b", "all"))
START = Start("peers", ("data", "peer_start", "--noise", "0.3"))


def arm(name: str, *overrides: str) -> Training:
    return Training(f"peers_{name}", TRIAL, START, "peers", overrides, seeds=3)


AGREE = arm("agree", HIGH)
# One LLM is both peers.
ALONE = arm("alone", "~mas.policies.b", "mas.agents.peer_1.policy=a")
# Two copies of an LLM that is blind in all tasks.
SHARED = arm("shared_error", *ALL)
SHUFFLED = arm("shuffled", HIGH, REWARDS, "mas.workflow.name=ShuffledPeers")
LABELLED = arm("labels", HIGH, REWARDS, "mas.workflow.name=LabelledPeers")


def more_agreement(run: Run) -> float:
    """The agreement of held-out answers after training less that before."""
    by_step = list(run["controls"]["agreement"].values())
    return by_step[-1] - by_step[0]


TASK = Task(
    "peers",
    "Peers without labels",
    (
        Group("peers_apart", (AGREE, ALONE, SHUFFLED, LABELLED), ("agreement",)),
        Group("peers_alike", (SHARED,), ("agreement",)),
    ),
    (
        Claim("two LLMs whose errors differ gain 0.15 by agreement, without a label", gain(AGREE), low=0.15, seeds=3),
        Claim("one LLM that agrees with itself ends 0.1 lower", gap(ALONE, AGREE), high=-0.1, seeds=3),
        Claim("agreement with answers to other tasks teaches nothing", gain(SHUFFLED), high=0.05, seeds=3),
        Claim("labels are at most 0.15 better", gap(LABELLED, AGREE), high=0.15, seeds=3),
        Claim(
            "two LLMs that share an error agree more after training", success(SHARED, more_agreement), low=0.2, seeds=3
        ),
        Claim("and are right less often", gain(SHARED), high=-0.1, seeds=3),
    ),
)
