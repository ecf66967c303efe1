"""Peers without labels: pairs of models reward each other by agreement, on short sums.

A model is blind in half of the tasks, where it mostly writes the result plus one, or in all. A run has several pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, success
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
SETTINGS = (
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
)
START = Start("peers", ("data", "peer_start", "--noise", "0.3"))


def arm(name: str, *pairs: str) -> Training:
    """One run of these pairs; its success is that of the first one."""
    controls = {f"{pair}_{number}": AUX.format(pair, number) for pair in pairs for number in ("acc", "agreement")}
    trial = Trial(name, STEPS, "val-core/arithmetic/acc/mean@1", SETTINGS, controls)
    own = (setting for pair in pairs for setting in settings_of(pair))
    return Training(name, trial, START, "peers", (f"++mas.workflow.args.pairs=[{','.join(pairs)}]", *own), seeds=SEEDS)


def settings_of(pair: str) -> Iterator[str]:
    """A policy begins as the model of the start that is blind there; an agent has the policy of its number, if any."""
    for policy, blind in PAIRS[pair].items():
        model = "${actor_rollout_ref.model.path}" + ("" if blind == "low" else f"/{blind}")
        yield f"++mas.policies.{policy}.overrides.model.path={model}"
    for number in range(2):
        policy = [*PAIRS[pair]][min(number, len(PAIRS[pair]) - 1)]
        yield f"++mas.agents.{pair}_peer_{number}.policy={policy}"


AGREE = arm("peers_agree", "agree", "alike")
OTHERS = arm("peers_others", "labels", "alone", "shuffled")


def of(pair: str, name: str = "acc") -> Callable[[Run], float]:
    """The change of a number from the first validation to the last."""

    def found(run: Run) -> float:
        by_step = list(run["controls"][f"{pair}_{name}"].values())
        return float(by_step[-1] - by_step[0])

    return found


TASK = Task(
    "peers",
    "Peers without labels",
    (
        Group("peers_agree", (AGREE,), tuple(AGREE.trial.controls)),
        Group("peers_others", (OTHERS,), tuple(OTHERS.trial.controls)),
    ),
    (
        Claim("two LLMs whose errors differ gain 0.1 by agreement, without a label", gain(AGREE), low=0.1, seeds=SEEDS),
        Claim("labels end at most 0.15 higher", gap(OTHERS, AGREE), high=0.15, seeds=SEEDS),
        Claim(
            "one LLM that agrees with itself gains less than 0.1", success(OTHERS, of("alone")), high=0.1, seeds=SEEDS
        ),
        Claim(
            "agreement with answers to other tasks teaches nothing",
            success(OTHERS, of("shuffled")),
            high=0.05,
            seeds=SEEDS,
        ),
        Claim(
            "two LLMs that mostly make the same error agree more",
            success(AGREE, of("alike", "agreement")),
            low=0.1,
            seeds=SEEDS,
        ),
        Claim("and are right less often", success(AGREE, of("alike")), high=-0.05, seeds=SEEDS),
    ),
)
