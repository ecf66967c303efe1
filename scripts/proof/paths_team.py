"""A team whose agents have the same work: each answers a long prompt, none reads another one's reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from verl_mas.workflow import Outcome, Task, Team, Workflow, instances


class Alike(Workflow):
    """`count` agents: path_0, path_1, ..."""

    count: int = 2
    repeats: int = 1
    """How often the question is in the prompt."""

    @property
    def agents(self) -> Sequence[str]:
        return instances("path", self.count)

    async def run(self, task: Task, team: Team) -> Outcome:
        prompt = task.question * self.repeats
        replies = await asyncio.gather(*(team[agent].act(prompt) for agent in self.agents))
        return Outcome(answer=" ".join(map(str, replies)))
