"""A team that passes letters on. Loaded by path, in the agent-loop workers too."""

from __future__ import annotations

from verl_mas.workflow import Outcome, Task, Team, Workflow


class Chain(Workflow):
    """A number of agents that act once each, so that every policy has rows."""

    length: int = 1

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(f"agent_{i}" for i in range(self.length))

    async def run(self, task: Task, team: Team) -> Outcome:
        reply = await team.agent_0.act(task.messages)
        for agent in self.agents[1:]:
            reply = await team[agent].act(f"{task.question} {reply}")
        return Outcome(answer=reply)
