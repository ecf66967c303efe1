"""One agent with one act, as in verl without verl-mas."""

from verl_mas.workflow import Outcome, Task, Team, Workflow, register_workflow


@register_workflow("single")
class Single(Workflow):
    agents = ("solver",)
    answered_by = "solver"

    async def run(self, task: Task, team: Team) -> Outcome:
        return Outcome(answer=await team.solver.act(task.messages))
