"""A team that passes letters from agent to agent. verl-mas loads it by path, also in the agent-loop workers."""

from __future__ import annotations

from verl_mas.workflow import Outcome, Task, Team, Workflow


class Chain(Workflow):
    """A chain of `length` agents. Each agent acts once, so every policy has rows."""

    length: int = 1

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(f"agent_{i}" for i in range(self.length))

    async def run(self, task: Task, team: Team) -> Outcome:
        reply = await team.agent_0.act(task.messages)
        for agent in self.agents[1:]:
            reply = await team[agent].act(f"{task.question} {reply}")
        return Outcome(answer=reply)
