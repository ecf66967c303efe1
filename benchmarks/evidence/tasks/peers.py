"""Peers without labels: pairs of models reward each other by agreement, on short sums.

A model is blind in half of the tasks, where it mostly writes the result plus one, or in all. All pairs are in one run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, success
from benchmarks.evidence.tables import Run
from benchmarks.evidence.tasks.base import Group, Task

STEPS, EVERY, SEEDS = 12, 4, 3
# Pair -> its policies and where each begins: blind for a first number that is low or high, or for all.
PAIRS = {
    "agree": {"agree_a": "low", "agree_b": "high"},
    "alone": {"alone": "low"},
    "alike": {"alike_a": "all", "alike_b": "all"},
    "shuffled": {"shuffled": "low"},
    "labels": {"labels": "low"},
}
AUX = "val-aux/arithmetic/{}_{}/mean@1"
TRIAL = Trial(
    "peers",
    STEPS,
    "val-core/arithmetic/acc/mean@1",
    settings=(
        "+recipe=peers/laptop",
        "mas.workflow.name=PeerArms",
        f"mas.workflow.path={Path(__file__).parents[1] / 'peer_rewards.py'}",
        "mas.trajectories.enabled=false",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.optim.lr=6e-4",
        "data.val_max_samples=80",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={EVERY}",
        *("~mas.policies.a", "~mas.policies.b", "~mas.agents.peer", "~mas.agents.peer_0", "~mas.agents.peer_1"),
    ),
    controls={f"{pair}_{name}": AUX.format(pair, name) for pair in PAIRS for name in ("acc", "agreement")},
)


def policies() -> list[str]:
    """A policy begins as the model of the start that is blind there; an agent has the policy of its number, if any."""
    found = []
    for pair, starts in PAIRS.items():
        for policy, blind in starts.items():
            model = "${actor_rollout_ref.model.path}" + ("" if blind == "low" else f"/{blind}")
            found.append(f"++mas.policies.{policy}.overrides.model.path={model}")
        for number in range(2):
            policy = [*starts][min(number, len(starts) - 1)]
            found.append(f"++mas.agents.{pair}_peer_{number}.policy={policy}")
    return found


START = Start("peers", ("data", "peer_start", "--noise", "0.3"))
ARMS = Training("peers_arms", TRIAL, START, "peers", tuple(policies()), seeds=SEEDS)


def of(pair: str, name: str = "acc") -> Callable[[Run], float]:
    """The change of a number from the first validation to the last."""

    def found(run: Run) -> float:
        by_step = list(run["controls"][f"{pair}_{name}"].values())
        return float(by_step[-1] - by_step[0])

    return found


def ends_above(pair: str, other: str) -> Callable[[Run], float]:
    return lambda run: [*run["controls"][f"{pair}_acc"].values()][-1] - [*run["controls"][f"{other}_acc"].values()][-1]


def claim(text: str, number: Callable[[Run], float], **bounds: float) -> Claim:
    return Claim(text, success(ARMS, number), seeds=SEEDS, **bounds)


TASK = Task(
    "peers",
    "Peers without labels",
    (Group("peers_pairs", (ARMS,), tuple(TRIAL.controls)),),
    (
        claim("two LLMs whose errors differ gain 0.1 by agreement, without a label", of("agree"), low=0.1),
        claim("and end above one LLM that agrees with itself", ends_above("agree", "alone"), low=0.0),
        claim("agreement with answers to other tasks teaches nothing", of("shuffled"), high=0.05),
        claim("labels end at most 0.15 higher", ends_above("labels", "agree"), high=0.15),
        claim("two LLMs that mostly make the same error agree more after training", of("alike", "agreement"), low=0.1),
        claim("and are right less often", of("alike"), high=-0.05),
    ),
)
