"""Pairs of peers as arms of one run.

Some pairs get their rewards from agreement. Other pairs get them from answers to another task, from a model's own other
answers, from reviews, or from the ground truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from statistics import fmean
from typing import Literal

from verl_mas.config.hydra.recipe.math.arithmetic import draw
from verl_mas.config.hydra.recipe.peers.team import Peers, approval
from verl_mas.config.values import Count
from verl_mas.workflow import Outcome, Task, Team, Workflow, nested
from verl_mas.workflows._graded import Graded, GradedTask
from verl_mas.workflows.solver_verifier import solve


class ShuffledPeers(Peers):
    """The control: an answer is rewarded if it equals the other peers' answers to another chain of sums."""

    async def rewards(
        self, task: Task, team: Team, answers: Sequence[Graded], same: Sequence[Sequence[Graded]]
    ) -> Sequence[float]:
        chain = draw(terms=3, largest=9, rng=team.random("chain"))
        other = replace(task, messages=[{"role": "user", "content": chain}])
        graded = GradedTask(other, self.answer_form(task.data_source), self.grader(), None)
        peers = team.aside("shuffled").role("peer")
        foreign = [graded.read(reply) for reply in await asyncio.gather(*[peer.act(solve(graded)) for peer in peers])]
        return [share(each, [one for one in foreign if one.reply.agent != each.reply.agent]) for each in answers]


class LonePeers(Peers):
    """The control without a peer: an answer is rewarded if it equals the other answers of its own model."""

    async def rewards(
        self, task: Task, team: Team, answers: Sequence[Graded], same: Sequence[Sequence[Graded]]
    ) -> Sequence[float]:
        found = list[float]()
        for each in answers:
            own = [one for one in answers if one.reply.agent == each.reply.agent and one is not each]
            found.append(share(each, own))
        return found


class ReviewPeers(Peers):
    """Peers whose reward is the approval of the other peer. In validation, `reviews` is the share of reviews that are
    right; an unreadable answer counts as refused."""

    teacher: Literal["review"] = "review"
    answer_form = Peers.answer_form

    async def run(self, task: Task, team: Team) -> Outcome:
        outcome = await super().run(task, team)
        if not task.validate:
            return outcome
        graded, aside = self.graded(task), team.aside("reviewed")
        replies = await asyncio.gather(*[peer.act(solve(graded)) for peer in aside.role("peer")])
        grades = [await graded.grade(reply) for reply in replies]
        approved = await asyncio.gather(*[approval(task, aside, each) for each in grades])
        right = fmean(by == each.value for by, each in zip(approved, grades, strict=True))
        return replace(outcome, info={**outcome.info, "reviews": right})


class LabelledPeers(Peers):
    """The upper bound: an answer is rewarded if it is right by the ground truth."""

    async def rewards(
        self, task: Task, team: Team, answers: Sequence[Graded], same: Sequence[Sequence[Graded]]
    ) -> Sequence[float]:
        graded = self.graded(task)
        return [(await graded.grade(each.reply)).value for each in answers]


PAIRS: Mapping[str, type[Peers]] = {
    "agree": Peers,
    "alike": Peers,
    "shuffled": ShuffledPeers,
    "labels": LabelledPeers,
    "alone": LonePeers,
    "review": ReviewPeers,
}


class PeerArms(Workflow):
    """Several independent pairs in one run. Each pair has separate policies; all pairs get the same tasks.

    The success of the session is that of the first pair.
    """

    pairs: list[str] = field(default_factory=lambda: [*PAIRS])
    answers: Count = 4

    @property
    def agents(self) -> Sequence[str]:
        return [agent for pair in self.pairs for agent in nested(pair, Peers)]

    async def run(self, task: Task, team: Team) -> Outcome:
        # The answers are single numbers, so it is enough to compare their texts exactly (`em`).
        teams = {pair: PAIRS[pair](score="em", answers=self.answers) for pair in self.pairs}
        outcomes = await asyncio.gather(*[one.run(task, team.sub(pair)) for pair, one in teams.items()])
        found = dict(zip(teams, outcomes, strict=True))
        info = {f"{pair}_{name}": value for pair, one in found.items() for name, value in one.info.items()}
        return replace(outcomes[0], info={**outcomes[0].info, **info})


def share(each: Graded, others: Sequence[Graded]) -> float:
    """Return the share of other answers that equal this answer."""
    return sum(one.answer is not None and one.answer == each.answer for one in others) / len(others)
