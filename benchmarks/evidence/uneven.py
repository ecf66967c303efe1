"""A planner whose own reward is multiplied by a given factor."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.gym.puzzles.game import PuzzleAttempt
from verl_mas.gym.puzzles.puzzle import Puzzle
from verl_mas.gym.puzzles.teams import PlannerExecutor
from verl_mas.workflow import Malformed, Reply


class UnevenRewards(PlannerExecutor):
    """Planner and executor with uneven rewards. `factor` multiplies the planner's own reward, and so its mean and
    spread."""

    factor: float = 1.0

    def scored(self, reply: Reply, actions: Sequence[str] | Malformed, puzzle: Puzzle, among: int) -> PuzzleAttempt:
        attempt = super().scored(reply, actions, puzzle, among)
        if reply.agent == "planner":
            reply.reward = self.factor * attempt.local
        return attempt
