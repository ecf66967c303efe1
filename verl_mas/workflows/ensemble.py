"""N reasoners in parallel, then a judge that reads all proposals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from verl_mas.config.values import Count
from verl_mas.workflow import (
    Boxed,
    Message,
    Outcome,
    Reply,
    Task,
    Team,
    Workflow,
    instances,
    register_workflow,
    with_instruction,
)


@register_workflow("ensemble")
class Ensemble(Workflow):
    """`reasoners` proposals; the judge's answer is the team's."""

    scored_by_verl = True
    reasoners: Count = 3
    """Agents of the role `reasoner`: reasoner_0, reasoner_1, ..."""

    @property
    def agents(self) -> Sequence[str]:
        return (*instances("reasoner", self.reasoners), "judge")

    async def run(self, task: Task, team: Team) -> Outcome:
        reasoners = team.role("reasoner")
        proposals = await asyncio.gather(*[reasoner.act(propose(task)) for reasoner in reasoners])
        return Outcome(answer=await team.judge.act(decide(task, proposals)))


def propose(task: Task) -> list[Message]:
    return with_instruction(task.messages, f"Solve the problem step by step. {Boxed().prompt()}")


def decide(task: Task, proposals: Sequence[Reply]) -> list[Message]:
    listed = "\n\n".join(f"Proposal {number}:\n{proposal}" for number, proposal in enumerate(proposals, 1))
    instruction = f"{listed}\n\nWeigh the proposals and give the final answer. {Boxed().prompt()}"
    return with_instruction(task.messages, instruction)
