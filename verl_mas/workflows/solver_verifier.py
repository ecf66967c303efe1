"""Propose, review, propose again; the last proposal is the answer."""

from __future__ import annotations

from verl_mas.environments.math_answers import Grade, require_math_verify, shared_checker
from verl_mas.errors import ConfigError
from verl_mas.workflow import Boxed, Choice, Malformed, Message, Outcome, Reply, Task, Team, Workflow, workflow
from verl_mas.workflow.task import with_instruction

SCORES = ("verl", "math")


class Verdict(Choice, tag="verify"):
    APPROVE = "approve"
    REJECT = "reject"


@workflow("solver_verifier")
class SolverVerifier(Workflow):
    """`max_rounds` proposals at most, with a review between each two.

    `score` verl: verl's reward function scores the answer. `score` math: the box of the last proposal is compared
    with the ground truth, and a proposal without a box is malformed. `verdict_reward` is then what a verifier earns
    of its own for a right verdict.
    """

    agents = ("solver", "verifier")
    max_rounds: int = 2
    score: str = "verl"
    verdict_reward: float = 0.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ConfigError(
                f"mas.workflow.args.score={self.score}", rule=f"one of {', '.join(SCORES)}", way_out="use math"
            )
        if self.verdict_reward and self.score == "verl":
            raise ConfigError(
                f"mas.workflow.args.verdict_reward={self.verdict_reward} with score=verl",
                rule="whether a verdict is right is known only while the session runs",
                way_out="set mas.workflow.args.score=math",
            )

    def check(self) -> None:
        if self.score == "math":
            require_math_verify()

    async def run(self, task: Task, team: Team) -> Outcome:
        solution = await team.solver.act(solve(task))
        grade = await self._grade(task, solution)
        reviews = 0
        # What each review said of a proposal, and whether it was right; a review that cannot be read says nothing.
        verdicts: list[tuple[bool | None, bool]] = []
        while reviews + 1 < self.max_rounds:
            review = await team.verifier.act(judge(task, solution))
            reviews += 1
            verdict = review.parse(Verdict)
            if grade is not None:
                said = None if isinstance(verdict, Malformed) else verdict is Verdict.APPROVE
                verdicts.append((said, grade is Grade.CORRECT))
                if said is (grade is Grade.CORRECT):
                    review.reward = self.verdict_reward
            if verdict is Verdict.APPROVE:
                break
            solution = await team.solver.act(solve(task, solution, review))
            grade = await self._grade(task, solution)
        if grade is None:
            return Outcome(answer=solution, info={"reviews": reviews})
        correct = float(grade is Grade.CORRECT)
        info = {
            "reviews": reviews,
            "acc": correct,
            "right_verdicts": sum(said is right for said, right in verdicts) / max(1, reviews),
            "unchecked": float(grade in (Grade.TIMED_OUT, Grade.CRASHED)),
            "verdicts": {"verifier": verdicts},
        }
        return Outcome(answer=solution, reward=correct, info=info)

    async def _grade(self, task: Task, solution: Reply) -> Grade | None:
        if self.score == "verl":
            return None
        answer = solution.parse(Boxed())
        return await shared_checker().agrade(
            str(task.ground_truth or ""), None if isinstance(answer, Malformed) else answer
        )


def solve(task: Task, solution: Reply | None = None, review: Reply | None = None) -> list[Message]:
    """The first prompt, or with an earlier solution the prompt to mend it."""
    instruction = f"Solve the problem step by step. {Boxed().prompt()}"
    if solution and review:
        instruction = (
            f"An earlier solution:\n{solution}\n\nA reviewer wrote:\n{review}\n\n"
            f"Solve the problem again, with the review in mind. {Boxed().prompt()}"
        )
    return with_instruction(task.messages, instruction)


def judge(task: Task, solution: Reply) -> list[Message]:
    instruction = f"A proposed solution:\n{solution}\n\nCheck it step by step, then judge. {Verdict.prompt()}"
    return with_instruction(task.messages, instruction)
