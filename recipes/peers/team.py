"""Peers answer a task separately and reward each other, by agreement or by reviews, without a ground truth."""

import asyncio
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Literal

from verl_mas.config.values import Count, Range
from verl_mas.workflow import Outcome, Task, Team, instances, register_workflow
from verl_mas.workflows._graded import Graded, GradedTask, WithGrader, same_answers
from verl_mas.workflows.solver_verifier import ReviewVerdict, judge, solve


@register_workflow("peers")
class Peers(WithGrader):
    """Peers answer a task separately and reward each other, by agreement or by reviews, without a ground truth.

    In training, the grader only compares answers with each other; only validation reads the ground truth.

    An unreadable answer equals no other answer, not even another unreadable answer, and gets the reward 0.
    """

    needs_labels = False

    peers: Annotated[int, Range(2)] = 2
    """Number of agents of the role `peer`: peer_0, peer_1, ..."""

    answers: Count = 1
    """Number of answers of each peer in a training session. The reward of an answer is computed from the answers of the
    other peers, so more answers make the reward less random."""

    teacher: Literal["agreement", "majority", "review"] = "agreement"
    """The own reward of an answer. agreement: the share of the other peers' answers that equal it. majority: 1/k if it
    is one of the k most frequent answers of the other peers, else 0. review: the share of the other peers that approve
    of it, in acts that are not trained on."""

    @property
    def agents(self) -> Sequence[str]:
        return instances("peer", self.peers)

    def most_acts(self, k: int) -> int:
        return self.peers * self.answers

    async def run(self, task: Task, team: Team) -> Outcome:
        grader, form = self.grader(), self.answer_form(task.data_source)
        graded = self.graded(task) if task.validate else GradedTask(task, form, grader, None)
        times = 1 if task.validate else self.answers
        acts = [peer.act(solve(graded)) for peer in team.role("peer") for _ in range(times)]
        answers = [graded.read(reply) for reply in await asyncio.gather(*acts)]
        same = await same_answers(grader, answers)
        final = max(same, key=len, default=answers)[0].reply
        info = {"agreement": fmean(agreements(answers, same))}
        if not task.validate:
            for each, reward in zip(answers, await self.rewards(task, team, answers, same), strict=True):
                each.reply.reward = reward
            return Outcome(answer=final, info=info)
        grades = [await graded.grade(each.reply) for each in answers]
        right = {f"right_{each.reply.agent}": each.value for each in grades}
        majority = next(each.value for each in grades if each.reply is final)
        accuracy = fmean(right.values())
        return Outcome(answer=final, reward=accuracy, info={"acc": accuracy, "majority": majority, **right, **info})

    async def rewards(
        self, task: Task, team: Team, answers: Sequence[Graded], same: Sequence[Sequence[Graded]]
    ) -> Sequence[float]:
        """Return each answer's own reward in training. `same`: the readable answers, grouped by equality."""
        if self.teacher == "review":
            return await asyncio.gather(*[approval(task, team, each) for each in answers])
        return (majorities if self.teacher == "majority" else agreements)(answers, same)


def agreements(answers: Sequence[Graded], same: Sequence[Sequence[Graded]]) -> list[float]:
    """Return for each answer the share of the other peers' answers that equal it."""
    others = [sum(one.reply.agent != each.reply.agent for one in answers) for each in answers]
    return [_votes(each, same)[0] / count for each, count in zip(answers, others, strict=True)]


def majorities(answers: Sequence[Graded], same: Sequence[Sequence[Graded]]) -> list[float]:
    """Return 1/k for each answer that is among the k most frequent answers of the other peers, else 0."""
    votes = [_votes(each, same) for each in answers]
    return [(own == max(each)) / each.count(own) if own else 0.0 for own, each in votes]


def _votes(each: Graded, same: Sequence[Sequence[Graded]]) -> tuple[int, list[int]]:
    """Count the other peers' answers that equal `each`, and the other peers' answers in each group of `same`."""
    votes = [sum(one.reply.agent != each.reply.agent for one in group) for group in same]
    own = [count for count, group in zip(votes, same, strict=True) if any(one is each for one in group)]
    return sum(own), votes


async def approval(task: Task, team: Team, each: Graded) -> float:
    """Return the share of other peers that approve of the answer. An unreadable verdict counts as a refusal."""
    if each.answer is None:
        return 0.0
    peers = team.aside(f"review/{each.reply.agent}/{each.reply.turn}").role("peer")
    reviews = [peer.act(judge(task, each.reply)) for peer in peers if peer.name != each.reply.agent]
    return fmean([one.parse(ReviewVerdict) is ReviewVerdict.APPROVE for one in await asyncio.gather(*reviews)])
