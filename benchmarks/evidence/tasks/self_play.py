"""Self-play: test whether a learner that plays only earlier selves gets better against other players."""

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
OPENINGS = ("data", "self_play", "open_spiel/tic_tac_toe", "--options", "opening=2", "--noise", "0.3")
# The learner plays against an earlier self, which is refreshed every ten steps.
PAST = Training("tic_tac_toe_past", TRIAL, Start("tic_tac_toe", OPENINGS), "world", seeds=3)

# The number is the chips that a best response wins per game. Against a random player, it wins 0.458.
KUHN_TRIAL = Trial(
    "kuhn_poker",
    STEPS,
    "val-aux/open_spiel/kuhn_poker/exploitability/mean@1",
    settings=("+recipe=self_play/laptop_kuhn", f"trainer.total_training_steps={STEPS}"),
)
DEALS = ("data", "self_play", "open_spiel/kuhn_poker", "--noise", "0.3", "--test-rows", "2")
KUHN = Training("kuhn_poker_past", KUHN_TRIAL, Start("kuhn_poker", DEALS), "world", seeds=3)

TASK = Task(
    "self_play",
    "Self-play",
    (Group("self_play_games", (PAST,)), Group("self_play_cards", (KUHN,))),
    (
        Claim(
            "a learner that plays earlier selves wins 0.2 more of its games against a random player",
            gain(PAST),
            low=0.2,
            seeds=3,
        ),
        Claim("and ends at 0.6 or more", success(PAST), low=0.6, seeds=3),
        Claim("a best response wins 0.15 chips less from a learner of Kuhn poker", gain(KUHN), high=-0.15, seeds=3),
        Claim("and 0.3 at the end", success(KUHN), high=0.3, seeds=3),
    ),
)
