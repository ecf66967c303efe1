"""A single agent solves math problems with Python: the control for the team `reasoner_tool_user`."""

from dataclasses import field

from verl_mas.config.values import Count
from verl_mas.environment.coding.solutions import Solution, chosen, compute, computed
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.grading.math import ground_truth, math_verify
from verl_mas.workflow import Outcome, Task, Team, Workflow, register_workflow


class WithToolUser(Workflow):
    """Base of the math teams with a tool user."""

    branches = True
    execution: Execution = field(default_factory=Execution)
    """How the programs are run."""

    def check(self) -> None:
        math_verify.require()
        self.execution.check()


@register_workflow("single_tool_user")
class SingleToolUser(WithToolUser):
    """A tool user that tries again while its program prints no readable answer, for at most `max_turns` turns."""

    agents = ("tool_user",)
    max_turns: Count = 4
    """Maximum number of programs."""

    async def run(self, task: Task, team: Team) -> Outcome:
        truth = ground_truth(task.ground_truth)
        last: Solution | None = None
        turns = 0
        while turns < self.max_turns and (last is None or last.answer is None):
            before = f"Your last program:\n{last.report}\n\n" if last else ""
            replies = await team.tool_user.branch(compute(task, before))
            last = await chosen(team, replies, lambda reply: computed(reply, truth, self.execution))
            turns += 1
        right = float(last is not None and last.right)
        return Outcome(answer=last.answer if last else None, reward=right, info={"acc": right, "turns": turns})
