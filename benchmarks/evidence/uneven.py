"""A planner whose own reward is larger than the executor's by a set factor."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.gym.puzzles.game import PuzzleAttempt
from verl_mas.gym.puzzles.puzzle import Puzzle
from verl_mas.gym.puzzles.teams import PlannerExecutor
from verl_mas.workflow import Malformed, Reply


class UnevenRewards(PlannerExecutor):
    """`factor` multiplies mean and spread of the planner's own reward."""

    factor: float = 1.0

    def scored(self, reply: Reply, actions: Sequence[str] | Malformed, puzzle: Puzzle, among: int) -> PuzzleAttempt:
        attempt = super().scored(reply, actions, puzzle, among)
        if reply.agent == "planner":
            reply.reward = self.factor * attempt.local
        return attempt
