"""A team that passes letters on, of as many agents as `mas.agents` has. Loaded by path, in the agent-loop workers too."""

from __future__ import annotations

from verl_mas.workflow import Outcome, Task, Team, Workflow


class Chain(Workflow):
    """Every agent acts once, so every policy has rows."""

    agents = ("first", "second", "third", "fourth")

    async def run(self, task: Task, team: Team) -> Outcome:
        reply = await team.first.act(task.messages)
        for agent in (team.second, team.third, team.fourth):
            reply = await agent.act(f"{task.question} {reply}")
        return Outcome(answer=reply)
