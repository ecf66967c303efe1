"""Propose, review, propose again; the last proposal is the answer."""

from collections.abc import Sequence

from verl_mas.config.values import Count, NotNegative
from verl_mas.errors import ConfigError
from verl_mas.workflow import Choice, Malformed, Message, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.reply import CheckedVerdict
from verl_mas.workflow.task import with_instruction
from verl_mas.workflows._graded import VERL, Graded, GradedTask, WithVerlOrGrader


class ReviewVerdict(Choice, tag="verify"):
    APPROVE = "approve"
    REJECT = "reject"


@register_workflow("solver_verifier")
class SolverVerifier(WithVerlOrGrader):
    """The solver makes up to `max_rounds` proposals. Each proposal except the last possible one is reviewed, and an
    approval ends the session."""

    agents = ("solver", "verifier")
    max_rounds: Count = 2
    """Maximum number of proposals."""

    verdict_reward: NotNegative = 0.0
    """The verifier's own reward for a right verdict. It needs a grader. 0: no reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.verdict_reward and self.score == VERL:
            value = f"mas.workflow.args.verdict_reward={self.verdict_reward} with score=verl"
            rule = "only a grader knows during the session whether a verdict is right"
            raise ConfigError(value, rule=rule, fix="set mas.workflow.args.score=math")

    async def run(self, task: Task, team: Team) -> Outcome:
        graded = self.graded(task)
        grades: list[Graded] = []
        verdicts: list[CheckedVerdict] = []
        solution: Reply | None = None
        review: Reply | None = None
        reviews = 0
        while True:
            solution = await team.solver.act(solve(graded, solution, review))
            if graded.grader:
                grades.append(await graded.grade(solution))
            if reviews + 1 == self.max_rounds:
                break
            review = await team.verifier.act(judge(task, solution))
            reviews += 1
            verdict = review.parse(ReviewVerdict)
            if grades and (checked := check_verdict(review, verdict, grades[-1], self.verdict_reward)):
                verdicts.append(checked)
            if verdict is ReviewVerdict.APPROVE:
                break
        if not grades:
            return Outcome(answer=solution, info={"reviews": reviews})
        correct = grades[-1].value
        unchecked = sum(each.grade is None for each in grades) / len(grades)
        info = {"reviews": reviews, "acc": correct, "unchecked": unchecked, **right_verdicts(verdicts)}
        return Outcome(answer=solution, reward=correct, info=info, verdicts={"verifier": verdicts})


def check_verdict(
    review: Reply, verdict: ReviewVerdict | Malformed, proposal: Graded, reward: float
) -> CheckedVerdict | None:
    """Compare a verdict with the ground truth, and reward the review if the verdict is right. None if the proposal
    could not be checked."""
    if proposal.grade is None:
        return None
    approved = None if isinstance(verdict, Malformed) else verdict is ReviewVerdict.APPROVE
    right = proposal.grade == 1
    if approved is right:
        review.reward = reward
    return approved, right


def right_verdicts(verdicts: Sequence[CheckedVerdict]) -> dict[str, float]:
    """Return the share of right verdicts under its name in `info`; empty if there are no verdicts."""
    if not verdicts:
        return {}
    return {"right_verdicts": sum(approved is right for approved, right in verdicts) / len(verdicts)}


def solve(graded: GradedTask, solution: Reply | None = None, review: Reply | None = None) -> list[Message]:
    """Make a prompt to solve the task. If there is a reviewed solution, the prompt asks for another solution."""
    if not (solution and review):
        return graded.prompt("Solve the problem step by step.")
    before = f"An earlier solution:\n{solution}\n\nA reviewer wrote:\n{review}\n\n"
    return graded.prompt(f"{before}Solve the problem again, with the review in mind.")


def judge(task: Task, solution: Reply) -> list[Message]:
    instruction = f"A proposed solution:\n{solution}\n\nCheck it step by step, then judge. {ReviewVerdict.prompt()}"
    return with_instruction(task.messages, instruction)
