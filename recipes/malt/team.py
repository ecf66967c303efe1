"""Generate, verify, refine: a tree of candidates in which the value of an act is the mean of its leaves (MALT)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from verl_mas.config.values import NotNegative
from verl_mas.workflow import Agent, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.reply import CheckedVerdict
from verl_mas.workflows._graded import Graded, GradedTask, WithGrader
from verl_mas.workflows.solver_verifier import ReviewVerdict, check_verdict, judge, right_verdicts, solve


@dataclass(frozen=True)
class Review:
    """A candidate of the verifier, with the refinements that follow it."""

    reply: Reply
    verdict: CheckedVerdict | None  # None: the proposal could not be checked
    refined: Sequence[Graded]


@dataclass(frozen=True)
class Proposal:
    """A candidate of the generator, with the reviews that follow it."""

    graded: Graded
    reviews: Sequence[Review]

    @property
    def leaves(self) -> list[Graded]:
        return [leaf for review in self.reviews for leaf in review.refined]


@register_workflow("generate_verify_refine")
class GenerateVerifyRefine(WithGrader):
    """Generate, verify, refine: a tree of candidates in which the value of an act is the mean of its leaves (MALT).

    The generator proposes, the verifier reviews, the refiner reads the proposal and the review and answers.

    If `mas.branch.k` is K, every act has K candidates, and the team continues from each of them: K replies of the
    generator, K^2 of the verifier and K^3 of the refiner. The value of a refinement is its grade; the value of an
    earlier act is the mean of its leaves. The refiner reads a review whatever its verdict is.
    """

    agents = ("generator", "verifier", "refiner")
    branches = True
    verdict_reward: NotNegative = 0.0
    """The verifier's own reward for a right verdict. 0: no reward."""

    def most_acts(self, k: int) -> int:
        return k + k**2 + k**3

    async def run(self, task: Task, team: Team) -> Outcome:
        graded = self.graded(task)
        drafts = await team.generator.branch(solve(graded))
        k = len(drafts)
        # Number the instances before they act, so that the numbers do not depend on the order of their acts.
        verifiers, refiners = _instances(team, "verifier", k), _instances(team, "refiner", k * k)
        by_draft = [refiners[i * k : (i + 1) * k] for i in range(k)]
        acts = zip(drafts, verifiers, by_draft, strict=True)
        return _outcome(team, await asyncio.gather(*[self._reviewed(graded, *each) for each in acts]))

    async def _reviewed(self, graded: GradedTask, draft: Reply, verifier: Agent, refiners: Sequence[Agent]) -> Proposal:
        proposal, reviews = await asyncio.gather(graded.grade(draft), verifier.branch(judge(graded.task, draft)))
        acts = zip(reviews, refiners, strict=True)
        refined = [self._refined(graded, proposal, review, refiner) for review, refiner in acts]
        followed = Proposal(proposal, await asyncio.gather(*refined))
        draft.team_reward = fmean([leaf.value for leaf in followed.leaves])
        return followed

    async def _refined(self, graded: GradedTask, proposal: Graded, review: Reply, refiner: Agent) -> Review:
        verdict = review.parse(ReviewVerdict)
        checked = check_verdict(review, verdict, proposal, self.verdict_reward)
        replies = await refiner.branch(solve(graded, proposal.reply, review))
        leaves = await asyncio.gather(*map(graded.grade, replies))
        for leaf in leaves:
            leaf.reply.team_reward = leaf.value
        review.team_reward = fmean([leaf.value for leaf in leaves])
        return Review(review, checked, leaves)


def _outcome(team: Team, proposals: Sequence[Proposal]) -> Outcome:
    """Make the outcome. The reward is the mean of the leaves; the answer is the leaf at the end of the committed
    candidates."""
    reviews = [review for proposal in proposals for review in proposal.reviews]
    leaves = [leaf for proposal in proposals for leaf in proposal.leaves]
    verdicts = [review.verdict for review in reviews if review.verdict is not None]
    answers = {id(review.reply): team.commit([leaf.reply for leaf in review.refined]) for review in reviews}
    chosen = {id(each.graded.reply): team.commit([review.reply for review in each.reviews]) for each in proposals}
    draft = team.commit([proposal.graded.reply for proposal in proposals])
    value = fmean([leaf.value for leaf in leaves])
    grades = [*[proposal.graded for proposal in proposals], *leaves]
    info = {
        "acc": value,
        "right_generated": fmean([proposal.graded.value for proposal in proposals]),
        "unchecked": fmean([float(each.grade is None) for each in grades]),
        **right_verdicts(verdicts),
    }
    answer = answers[id(chosen[id(draft)])]
    return Outcome(answer=answer, reward=value, info=info, verdicts={"verifier": verdicts})


def _instances(team: Team, name: str, count: int) -> list[Agent]:
    """Return the agent itself and `count - 1` further instances of it."""
    return [team.spawn(name) if number else team[name] for number in range(count)]
