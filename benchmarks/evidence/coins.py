"""Worlds whose training rewards are coin flips. This control shows the effect of the same number of updates when there
is nothing to learn."""

from __future__ import annotations

from dataclasses import replace

from verl_mas.workflow import Outcome, Task, Team, Workflow
from verl_mas.workflows.verifiers import Verifiers
from verl_mas.workflows.world import WorldTeam


class Coins(Workflow):
    async def run(self, task: Task, team: Team) -> Outcome:
        outcome = await super().run(task, team)
        if task.validate:
            return outcome
        coin = float(team.random("coin").random() < 0.5)
        for reply in team.replies:
            reply.team_reward = coin
        return replace(outcome, reward=coin)


class CoinWorld(Coins, WorldTeam):
    pass


class CoinVerifiers(Coins, Verifiers):
    pass
