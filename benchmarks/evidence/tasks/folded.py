"""Folded pages: an agent that reads pages in branches, the same agent with a cut history instead, and an agent that
repeats its notes in every turn."""

from __future__ import annotations

from benchmarks.evidence.arms import Arm, Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, success
from benchmarks.evidence.tasks.base import Group, Task

STEPS = 6
# The cut history has the last two of the six values. For each other value, one guess in eight is right.
FLOOR = (2 + 4 / 8) / 6


def tasks(count: int) -> tuple[str, ...]:
    return (f"data.train_batch_size={count}", f"actor_rollout_ref.actor.ppo_mini_batch_size={count}")


START = Start("folded_pages", ("data", "pages", "--noise", "0.1", "--test-rows", "80"))
TRIAL = Trial(
    "folded_pages",
    STEPS,
    "val-core/pages/acc/mean@1",
    settings=(
        "+recipe=folded/laptop",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        *tasks(8),
        "actor_rollout_ref.rollout.n=6",
        "actor_rollout_ref.actor.optim.lr=7e-4",
    ),
)
# Prompts and replies are as long as those of the folding agent. `tasks` makes the generated tokens per step as many.
WINDOW = (
    "mas.workflow.name=WindowPages",
    "++mas.agents.solver.truncation=drop_oldest",
    "data.max_prompt_length=64",
    "data.max_response_length=8",
)


def arm(name: str, *overrides: str) -> Arm:
    return Training(f"folded_{name}", TRIAL, START, "single", overrides, seeds=3)


FOLDED = arm("folded")
CUT = arm("cut", *WINDOW, *tasks(16))
# The fair comparison: like the folding agent, this agent forgets nothing.
NOTES = arm("notes", *WINDOW, "++mas.workflow.args.mark=' #'", *tasks(11))

TASK = Task(
    "folded",
    "Folded pages",
    (Group("folded_pages", (FOLDED, CUT, NOTES)),),
    (
        Claim(
            "folded, the agent ends 0.2 above the same agent with its oldest turns cut",
            gap(FOLDED, CUT),
            low=0.2,
            seeds=3,
        ),
        Claim("which ends at what its window leaves to know", success(CUT), high=FLOOR + 0.05, seeds=3),
        Claim(
            "folded, the agent is level with one that repeats its notes, or above it",
            gap(FOLDED, NOTES),
            low=-0.1,
            seeds=3,
        ),
        Claim("folding learns: it gains 0.1 over its demonstrations", gain(FOLDED), low=0.1, seeds=3),
    ),
    (FOLDED,),
)
