"""Secret words: a pretrained LLM as a scout that knows something, and as a judge that has to say it."""

from __future__ import annotations

from benchmarks.evidence.arms import Arm, Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, influence, success
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

STEPS = 48
METRIC = "val-core/{}/acc/mean@1"


def trial(name: str) -> Trial:
    return Trial(
        name,
        STEPS,
        METRIC.format("secret_words"),
        controls={"shuffled": METRIC.format("secret_words_shuffled")},
        settings=(f"trainer.total_training_steps={STEPS}", "trainer.test_freq=8"),
    )


def arms(kind: str) -> tuple[Arm, Arm, Arm]:
    """An adapter per agent; one policy with all weights; and the judge alone, which reads what the scout knows."""
    start = Start(f"smollm2_{kind}", ("data", "smollm2", "--kind", kind))

    def arm(name: str, *overrides: str, seeds: int = 3) -> Arm:
        return Training(f"{kind}_{name}", trial(kind), start, "secret_words", overrides, seeds=seeds)

    adapters = arm("adapters", "+recipe=smollm2/laptop", seeds=5 if kind == "word" else 3)
    shared = arm("shared", "+recipe=smollm2/laptop_shared")
    return adapters, shared, arm("alone", "+recipe=smollm2/laptop_shared", "++mas.workflow.args.control=all")


ADAPTERS, SHARED, ALONE = arms("word")
# Each knows half of the answer; a colour that is guessed is right in 1 of 12.
PAIR, _, _ = arms("pair")

TASK = Task(
    "secret_words",
    "Secret words",
    (
        Group("secret_words_team", (ADAPTERS, SHARED, ALONE), ("shuffled",)),
        Group("secret_words_pair", (PAIR,), ("shuffled",)),
    ),
    (
        Claim("scout and judge with an adapter each name nine words of ten", success(ADAPTERS), low=0.9),
        Claim("with shuffled messages it is at chance", success(ADAPTERS, control("shuffled")), high=0.05),
        Claim("one policy with all weights learns as much", gap(SHARED, ADAPTERS), low=-0.1, seeds=3),
        Claim("the judge alone, which reads the word, is no better", gap(ALONE, ADAPTERS), high=0.1, seeds=3),
        Claim("where each knows half, a team gains 0.4", gain(PAIR), low=0.4, seeds=3),
        Claim("and ends 0.4 above what messages of other tasks give", influence(PAIR), low=0.4, seeds=3),
    ),
)
