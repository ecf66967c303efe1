"""A planner whose own reward is larger than the executor's by a set factor, and who may be asked seldom."""

from __future__ import annotations

import random
from collections.abc import Sequence

from verl_mas.environments.play import Attempt, Choose
from verl_mas.environments.puzzle import Puzzle
from verl_mas.workflow import Malformed, Outcome, Reply, Task, Team
from verl_mas.workflows.planner_executor import PlannerExecutor


class UnevenRewards(PlannerExecutor):
    """`factor` multiplies mean and spread of the planner's own reward; `asked` is the share of turns it acts in."""

    factor: float = 1.0
    asked: float = 1.0

    async def run(self, task: Task, team: Team) -> Outcome:
        self._luck = random.Random(f"{task.extra_info['index']}/{task.step}/{task.session}")
        return await super().run(task, team)

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        if self._luck.random() < self.asked:
            return await super().turn(puzzle, choose)
        return (await choose("executor", puzzle, self.execute(puzzle, ()))).judgement.after

    def scored(self, reply: Reply, actions: Sequence[str] | Malformed, puzzle: Puzzle, among: int) -> Attempt:
        attempt = super().scored(reply, actions, puzzle, among)
        if reply.agent == "planner":
            reply.reward = self.factor * attempt.judgement.local
        return attempt
