"""Self-play: does a learner that meets only earlier selves get better against others?"""

from __future__ import annotations

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, success
from benchmarks.evidence.tasks.base import Group, Task

STEPS = 60
TRIAL = Trial(
    "tic_tac_toe",
    STEPS,
    "val-core/open_spiel/tic_tac_toe/pass@1",
    settings=("+recipe=self_play/laptop", f"trainer.total_training_steps={STEPS}"),
)
START = Start("tic_tac_toe", ("data", "self_play", "open_spiel/tic_tac_toe", "--options", "opening=2", "--noise", "0.3"))
# Against an earlier self, which is refreshed every ten steps.
PAST = Training("tic_tac_toe_past", TRIAL, START, "self_play", seeds=3)

TASK = Task(
    "self_play",
    "Self-play",
    (Group("self_play_games", (PAST,)),),
    (
        Claim(
            "a learner that plays earlier selves wins 0.2 more of its games against a random player",
            gain(PAST),
            low=0.2,
            seeds=3,
        ),
        Claim("and ends at 0.6 or more", success(PAST), low=0.6, seeds=3),
    ),
)
