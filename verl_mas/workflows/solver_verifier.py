"""Propose, review, propose again; the last proposal is the answer."""

from __future__ import annotations

from verl_mas.config.values import Count, NotNegative
from verl_mas.errors import ConfigError
from verl_mas.grading.math import BoxedAnswer
from verl_mas.workflow import (
    Choice,
    Malformed,
    Message,
    Outcome,
    Reply,
    Task,
    Team,
    register_workflow,
    with_instruction,
)
from verl_mas.workflow.outcome import CheckedVerdict
from verl_mas.workflows._graded import VERL, Graded, WithVerlOrGrader, graded


class Verdict(Choice, tag="verify"):
    APPROVE = "approve"
    REJECT = "reject"


@register_workflow("solver_verifier")
class SolverVerifier(WithVerlOrGrader):
    """`max_rounds` proposals at most, with a review between each two."""

    agents = ("solver", "verifier")
    own_rewards = ("verdict_reward",)
    max_rounds: Count = 2
    """Proposals at most."""

    score: str = VERL
    """verl: verl's reward function scores the answer. Any other value names a grader, such as math, which
    compares the box of the last proposal with the ground truth; a proposal without a box is malformed."""

    verdict_reward: NotNegative = 0.0
    """The own reward of a verifier for a right verdict; needs a grader. 0: none."""

    @property
    def scored_by_verl(self) -> bool:
        return self.score == VERL

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.verdict_reward and self.score == VERL:
            raise ConfigError(
                f"mas.workflow.args.verdict_reward={self.verdict_reward} with score=verl",
                rule="only a grader knows during the session whether a verdict is right",
                fix="set mas.workflow.args.score=math",
            )

    async def run(self, task: Task, team: Team) -> Outcome:
        grader = self.optional_grader()
        truth = grader.read(task.ground_truth) if grader else None
        solution = await team.solver.act(solve(task))
        grades: list[Graded] = [await graded(grader, truth, solution)] if grader else []
        reviews = 0
        # Per review: the verdict, None if unreadable, and whether the proposal was right.
        verdicts: list[CheckedVerdict] = []
        while reviews + 1 < self.max_rounds:
            review = await team.verifier.act(judge(task, solution))
            reviews += 1
            verdict = review.parse(Verdict)
            if grades and grades[-1].grade is not None:
                approved = None if isinstance(verdict, Malformed) else verdict is Verdict.APPROVE
                right = grades[-1].grade == 1
                verdicts.append((approved, right))
                if approved is right:
                    review.reward = self.verdict_reward
            if verdict is Verdict.APPROVE:
                break
            solution = await team.solver.act(solve(task, solution, review))
            if grader:
                grades.append(await graded(grader, truth, solution))
        if not grades:
            return Outcome(answer=solution, info={"reviews": reviews})
        correct = grades[-1].value
        info = {
            "reviews": reviews,
            "acc": correct,
            "unchecked": sum(each.grade is None for each in grades) / len(grades),
        }
        if verdicts:
            info["right_verdicts"] = sum(approved is right for approved, right in verdicts) / len(verdicts)
        return Outcome(answer=solution, reward=correct, info=info, verdicts={"verifier": verdicts})


def solve(task: Task, solution: Reply | None = None, review: Reply | None = None) -> list[Message]:
    """The first prompt, or with an earlier solution the prompt to correct it."""
    instruction = f"Solve the problem step by step. {BoxedAnswer().prompt()}"
    if solution and review:
        instruction = (
            f"An earlier solution:\n{solution}\n\nA reviewer wrote:\n{review}\n\n"
            f"Solve the problem again, with the review in mind. {BoxedAnswer().prompt()}"
        )
    return with_instruction(task.messages, instruction)


def judge(task: Task, solution: Reply) -> list[Message]:
    instruction = f"A proposed solution:\n{solution}\n\nCheck it step by step, then judge. {Verdict.prompt()}"
    return with_instruction(task.messages, instruction)
