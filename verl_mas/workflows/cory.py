"""A pioneer answers, an observer answers with the pioneer's answer in its prompt; both earn the sum (CORY)."""

from __future__ import annotations

import asyncio

from verl_mas.workflow import Codec, Message, Outcome, Reply, Task, Team, register_workflow, with_instruction
from verl_mas.workflows._graded import WithGrader, graded
from verl_mas.workflows.solver_verifier import solve


@register_workflow("cory")
class Cory(WithGrader):
    """Two copies of one LLM, which exchange these roles during training: `mas.swap.agents=[pioneer,observer]`.

    The pioneer's answer is the team's: it has the task alone, as the LLM has it when it is used after the training.
    """

    agents = ("pioneer", "observer")

    def longest_prompt(self, role: str) -> tuple[int, int]:
        return 1, int(role == "observer")

    async def run(self, task: Task, team: Team) -> Outcome:
        grader = self.grader()
        truth = grader.read(task.ground_truth)
        form = self.answer_form(task.data_source)
        first = await team.pioneer.act(solve(task, form))
        second = await team.observer.act(observe(task, form, first))
        pioneer, observer = await asyncio.gather(*[graded(grader, truth, form, reply) for reply in (first, second)])
        info = {
            "acc": pioneer.value,
            "observer_right": observer.value,
            "unchecked": sum(each.grade is None for each in (pioneer, observer)) / 2,
        }
        return Outcome(answer=first, reward=pioneer.value + observer.value, info=info)


def observe(task: Task, form: Codec[str], reference: Reply) -> list[Message]:
    """The observer's prompt."""
    instruction = f"A reference, which may be wrong:\n{reference}\n\nSolve the problem step by step."
    return with_instruction(task.messages, f"{instruction} {form.prompt()}")
