"""Propose, review, propose again; the last proposal is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.config.values import Count, NotNegative
from verl_mas.errors import ConfigError
from verl_mas.workflow import (
    Choice,
    Codec,
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


class ReviewVerdict(Choice, tag="verify"):
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
    compares the last proposal's answer with the ground truth; a proposal without one is malformed."""

    verdict_reward: NotNegative = 0.0
    """The own reward of a verifier for a right verdict; needs a grader. 0: none."""

    @property
    def scored_by_verl(self) -> bool:
        return self.score == VERL

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.verdict_reward and self.score == VERL:
            value = f"mas.workflow.args.verdict_reward={self.verdict_reward} with score=verl"
            rule = "only a grader knows during the session whether a verdict is right"
            raise ConfigError(value, rule=rule, fix="set mas.workflow.args.score=math")

    def longest_prompt(self, role: str) -> tuple[int, int]:
        return 1, 1 if role == "verifier" else 2 * (self.max_rounds > 1)

    async def run(self, task: Task, team: Team) -> Outcome:
        grader = self.optional_grader()
        truth = grader.read(task.ground_truth) if grader else None
        form = self.answer_form(task.data_source)
        grades: list[Graded] = []
        verdicts: list[CheckedVerdict] = []
        solution: Reply | None = None
        review: Reply | None = None
        reviews = 0
        while True:
            solution = await team.solver.act(solve(task, form, solution, review))
            if grader:
                grades.append(await graded(grader, truth, form, solution))
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
    """Compare it with the truth, and reward the review if it is right. None: the proposal could not be checked."""
    if proposal.grade is None:
        return None
    approved = None if isinstance(verdict, Malformed) else verdict is ReviewVerdict.APPROVE
    right = proposal.grade == 1
    if approved is right:
        review.reward = reward
    return approved, right


def right_verdicts(verdicts: Sequence[CheckedVerdict]) -> dict[str, float]:
    """The share of right ones, by its name in `info`; nothing if there are none."""
    if not verdicts:
        return {}
    return {"right_verdicts": sum(approved is right for approved, right in verdicts) / len(verdicts)}


def solve(task: Task, form: Codec[str], solution: Reply | None = None, review: Reply | None = None) -> list[Message]:
    """The first prompt, or with an earlier solution the prompt to correct it."""
    instruction = f"Solve the problem step by step. {form.prompt()}"
    if solution and review:
        instruction = (
            f"An earlier solution:\n{solution}\n\nA reviewer wrote:\n{review}\n\n"
            f"Solve the problem again, with the review in mind. {form.prompt()}"
        )
    return with_instruction(task.messages, instruction)


def judge(task: Task, solution: Reply) -> list[Message]:
    instruction = f"A proposed solution:\n{solution}\n\nCheck it step by step, then judge. {ReviewVerdict.prompt()}"
    return with_instruction(task.messages, instruction)
