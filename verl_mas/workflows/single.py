"""One agent, one act: plain verl."""

from verl_mas.workflow import Outcome, Task, Team, Workflow, register_workflow


@register_workflow("single")
class Single(Workflow):
    agents = ("solver",)
    scored_by_verl = True
    answered_by = "solver"

    def longest_prompt(self, role: str) -> tuple[int, int]:
        return 1, 0

    async def run(self, task: Task, team: Team) -> Outcome:
        return Outcome(answer=await team.solver.act(task.messages))
