"""A pioneer answers. An observer reads this answer and answers too. Both get the sum of their grades (CORY)."""

import asyncio

from verl_mas.workflow import Message, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflows._graded import GradedTask, WithGrader
from verl_mas.workflows.solver_verifier import solve


@register_workflow("cory")
class Cory(WithGrader):
    """A pioneer answers. An observer reads this answer and answers too. Both get the sum of their grades (CORY).

    Both are copies of one LLM, and `mas.swap.agents=[pioneer,observer]` exchanges their roles during training.
    The pioneer's answer is the team's answer. The pioneer's prompt is the task alone, as it will be when the LLM is
    used after training.
    """

    agents = ("pioneer", "observer")

    async def run(self, task: Task, team: Team) -> Outcome:
        graded = self.graded(task)
        first = await team.pioneer.act(solve(graded))
        second = await team.observer.act(observe(graded, first))
        pioneer, observer = await asyncio.gather(graded.grade(first), graded.grade(second))
        info = {
            "acc": pioneer.value,
            "observer_right": observer.value,
            "unchecked": sum(each.grade is None for each in (pioneer, observer)) / 2,
        }
        return Outcome(answer=first, reward=pioneer.value + observer.value, info=info)


def observe(graded: GradedTask, reference: Reply) -> list[Message]:
    """The observer's prompt."""
    return graded.prompt(f"A reference, which may be wrong:\n{reference}\n\nSolve the problem step by step.")
