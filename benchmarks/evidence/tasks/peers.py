"""Peers without labels: pairs of models reward each other by agreement or by reviews, on short sums.

A model begins blind in half of the tasks or in all tasks: there it mostly writes the result plus one. A run has several
pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, success
from benchmarks.evidence.tables import Run, gained
from benchmarks.evidence.tasks.base import Group, Task

STEPS, EVERY, SEEDS = 8, 4, 3
# Pair -> its policies, and the tasks in which each policy begins blind: with a low or a high first number, or all.
PAIRS = {
    "agree": {"agree_a": "low", "agree_b": "high"},
    "alike": {"alike_a": "all", "alike_b": "all"},
    "shuffled": {"shuffled": "low"},
    "labels": {"labels": "low"},
    # These two begin as the models of `agree`.
    "alone": {"alone_a": "low", "alone_b": "high"},
    "review": {"review_a": "low", "review_b": "high"},
}
AUX = "val-aux/arithmetic/{}_{}/mean@1"
SETTINGS = (
    "+recipe=peers/laptop",
    "mas.workflow.name=PeerArms",
    f"mas.workflow.path={Path(__file__).parents[1] / 'peer_rewards.py'}",
    "mas.trajectories.enabled=false",
    "data.val_max_samples=80",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={EVERY}",
    *("~mas.policies.a", "~mas.policies.b", "~mas.agents.peer", "~mas.agents.peer_0", "~mas.agents.peer_1"),
)
# After 800 steps of warm-up, half of the answers are right; after the default of 400, less than a third.
DECENT_START = Start("peers_decent", tuple("data peer_start --noise 0.3 --models low high --warm-up steps=800".split()))
POOR_START = Start("peers", ("data", "peer_start", "--noise", "0.3"))
# Half of the demonstrations are reviews. In a review, the model also works through the chain.
REVIEW_START = Start(
    "peers_review", tuple("data peer_start --noise 0.3 --models low high --reviews --warm-up steps=1000".split())
)


def arm(name: str, start: Start, *pairs: str) -> Training:
    """Return an arm: a run of these pairs. Its success is that of the first pair."""
    measured = [(pair, number) for pair in pairs for number in ("acc", "agreement")]
    measured += [("review", "reviews")] if "review" in pairs else []
    controls = {f"{pair}_{number}": AUX.format(pair, number) for pair, number in measured}
    trial = Trial(name, STEPS, "val-core/arithmetic/acc/mean@1", SETTINGS, controls)
    own = (setting for pair in pairs for setting in settings_of(pair))
    return Training(name, trial, start, "peers", (f"++mas.workflow.args.pairs=[{','.join(pairs)}]", *own), seeds=SEEDS)


def settings_of(pair: str) -> Iterator[str]:
    """Yield the settings of a pair. Each policy begins as the start's model that is blind in its tasks. The agents get
    the two policies in order, or share the only policy."""
    for policy, blind in PAIRS[pair].items():
        model = "${actor_rollout_ref.model.path}" + ("" if blind == "low" else f"/{blind}")
        yield f"++mas.policies.{policy}.overrides.model.path={model}"
    for number in range(2):
        policy = [*PAIRS[pair]][min(number, len(PAIRS[pair]) - 1)]
        yield f"++mas.agents.{pair}_peer_{number}.policy={policy}"


DECENT = arm("peers_decent", DECENT_START, "agree", "labels", "shuffled")
ALONE = arm("peers_alone", DECENT_START, "alone")
REVIEW = arm("peers_review", REVIEW_START, "review", "agree", "labels")
POOR = arm("peers_poor", POOR_START, "agree", "alike")


def of(pair: str, name: str = "acc") -> Callable[[Run], float]:
    """Return a function that computes how much a pair's number changes from the first validation to the last."""

    def found(run: Run) -> float:
        by_step = list(run["controls"][f"{pair}_{name}"].values())
        return float(by_step[-1] - by_step[0])

    return found


def beyond(pair: str, other: str) -> Callable[[Run], float]:
    """Return a function that computes how much more one pair gains than another."""
    return lambda run: of(pair)(run) - of(other)(run)


TASK = Task(
    "peers",
    "Peers without labels",
    (
        Group("peers_from_decent", (DECENT, ALONE), (*DECENT.trial.controls, "alone_agreement")),
        Group("peers_by_review", (REVIEW,), tuple(REVIEW.trial.controls)),
        Group("peers_from_poor", (POOR,), tuple(POOR.trial.controls)),
    ),
    (
        Claim(
            "two decent LLMs whose errors differ gain 0.05 by agreement, without a label",
            gain(DECENT),
            low=0.05,
            seeds=SEEDS,
        ),
        Claim("labels gain at least as much", success(DECENT, beyond("labels", "agree")), low=0.0, seeds=SEEDS),
        Claim(
            "agreement with answers to other tasks teaches nothing",
            success(DECENT, of("shuffled")),
            high=0.05,
            seeds=SEEDS,
        ),
        Claim(
            "each alone, by agreement with its own answers, gains less than 0.05", gain(ALONE), high=0.05, seeds=SEEDS
        ),
        Claim("and less than with the other as its peer", gap(DECENT, ALONE, gained), low=0.0, seeds=SEEDS),
        Claim("two decent LLMs that review each other gain 0.05, without a label", gain(REVIEW), low=0.05, seeds=SEEDS),
        Claim(
            "agreement gains at least as much as reviews, from the same start",
            success(REVIEW, beyond("agree", "review")),
            low=0.0,
            seeds=SEEDS,
        ),
        Claim(
            "two poor LLMs whose errors differ are right less often after agreement", gain(POOR), high=0.0, seeds=SEEDS
        ),
        Claim(
            "two that mostly make the same error agree more",
            success(POOR, of("alike", "agreement")),
            low=0.05,
            seeds=SEEDS,
        ),
        Claim("and are right less often", success(POOR, of("alike")), high=-0.05, seeds=SEEDS),
    ),
)
