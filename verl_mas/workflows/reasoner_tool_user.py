"""A reasoner and a tool user that writes Python solve the problem until they agree (the math team of AT-GRPO)."""

from verl_mas.config.values import Count
from verl_mas.environment.coding.solutions import Solution, chosen, compute, computed, equal, reason, reasoned
from verl_mas.environment.grading.math import ground_truth
from verl_mas.workflow import Outcome, Task, Team, register_workflow
from verl_mas.workflows.single_tool_user import WithToolUser


@register_workflow("reasoner_tool_user")
class ReasonerToolUser(WithToolUser):
    """Reasoner and tool user take up to `max_turns` rounds. The tool user reads the reasoner's solution; both read the
    results of the previous round.

    If an act has several candidates, the team reward of each candidate is 1 if its answer is right, else 0.
    """

    agents = ("reasoner", "tool_user")
    max_turns: Count = 4
    """Maximum number of rounds."""

    async def run(self, task: Task, team: Team) -> Outcome:
        truth = ground_truth(task.ground_truth)
        thought = printed = None
        turns = 0
        agreed = False
        while turns < self.max_turns and not agreed:
            turns += 1
            thoughts = await team.reasoner.branch(reason(task, _before(thought, printed)))
            thought = await chosen(team, thoughts, lambda reply: reasoned(reply, truth))
            programs = await team.tool_user.branch(compute(task, _before(thought, printed)))
            printed = await chosen(team, programs, lambda reply: computed(reply, truth, self.execution))
            agreed = thought.answer is not None and await equal(thought.answer, printed.answer)
        final = thought if thought and thought.answer is not None else printed
        right = float(final is not None and final.right)
        return Outcome(
            answer=final.answer if final else None,
            reward=right,
            info={"acc": right, "turns": turns, "agreed": float(agreed)},
        )


def _before(thought: Solution | None, printed: Solution | None) -> str:
    by_reasoner = f"A colleague's solution:\n{thought.report}\n\n" if thought else ""
    by_tool_user = f"A program:\n{printed.report}\n\n" if printed else ""
    return by_reasoner + by_tool_user
