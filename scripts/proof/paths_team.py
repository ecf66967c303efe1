"""A team whose agents do the same work: all get the same long prompt, and no agent reads another agent's reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from verl_mas.workflow import Outcome, Task, Team, Workflow, instances


class Alike(Workflow):
    """A workflow in which `count` agents (path_0, path_1, ...) act once, in parallel."""

    count: int = 2
    repeats: int = 1
    """Number of copies of the question in the prompt."""

    @property
    def agents(self) -> Sequence[str]:
        return instances("path", self.count)

    async def run(self, task: Task, team: Team) -> Outcome:
        prompt = task.question * self.repeats
        replies = await asyncio.gather(*(team[agent].act(prompt) for agent in self.agents))
        return Outcome(answer=" ".join(map(str, replies)))
