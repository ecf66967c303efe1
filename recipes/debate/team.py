"""Equal debaters answer, read each other's answers, and answer again; the majority's answer is the team's answer."""

import asyncio
import random
from collections.abc import Sequence

from verl_mas.config.values import Count, NotNegative, Share
from verl_mas.errors import ConfigError
from verl_mas.workflow import Message, Outcome, Reply, Task, Team, instances, register_workflow
from verl_mas.workflows._graded import Graded, GradedTask, WithGrader, most_frequent
from verl_mas.workflows.solver_verifier import solve


@register_workflow("debate")
class Debate(WithGrader):
    """Equal debaters answer, read each other's answers, and answer again; the majority's answer is the team's answer.

    All debaters answer at the same time in every round; from the second round on, their prompts contain the answers of
    the previous round. The grader also decides whether two answers are equal.
    """

    debaters: Count = 3
    """Number of agents of the role `debater`; their names are debater_0, debater_1, ..."""

    rounds: Count = 2
    """Number of answers of each debater. 1: a vote without a debate."""

    judge: bool = False
    """Whether an agent `judge` reads the last answers and decides. Otherwise the most frequent answer is the team's
    answer. In a tie, the answer that comes first in the order of the debaters is the team's answer."""

    answer_reward: NotNegative = 0.0
    """The own reward of an act whose answer is right. 0: acts get only the team's reward."""

    influence: Share = 0.0
    """Weight of later answers in the own reward of an act, as in MAPoRL. The act's own answer has the weight 1. The
    mean grade of all answers n rounds later has the weight influence^n. 0: only the act's own answer counts."""

    @property
    def agents(self) -> Sequence[str]:
        return (*instances("debater", self.debaters), *(["judge"] if self.judge else []))

    def most_acts(self, k: int) -> int:
        return self.debaters * self.rounds + self.judge

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.influence and not self.answer_reward:
            value = f"mas.workflow.args.influence={self.influence} with answer_reward=0"
            rule = "influence says which answers the own reward of an act counts"
            raise ConfigError(value, rule=rule, fix="set ++mas.workflow.args.answer_reward=1, or remove influence")

    async def run(self, task: Task, team: Team) -> Outcome:
        graded, debaters = self.graded(task), team.role("debater")
        replies = await asyncio.gather(*[debater.act(solve(graded)) for debater in debaters])
        rounds = [await asyncio.gather(*map(graded.grade, replies))]
        for _ in range(self.rounds - 1):
            acts = [debater.act(revise(graded, replies, number)) for number, debater in enumerate(debaters)]
            replies = await asyncio.gather(*acts)
            rounds.append(await asyncio.gather(*map(graded.grade, replies)))
        majority = await most_frequent(self.grader(), rounds[-1])
        if self.judge:
            final = await graded.grade(await team.judge.act(decide(graded, replies)))
        else:
            final = (majority or rounds[-1])[0]
        self._reward([*rounds, [final]] if self.judge else rounds)
        info = {
            "acc": final.value,
            "majority": majority[0].value if majority else 0.0,
            "agreement": len(majority) / self.debaters,
            "right_first": _right(rounds[0]),
            "right_last": _right(rounds[-1]),
        }
        return Outcome(answer=final.reply, reward=final.value, info=info)

    def _reward(self, rounds: Sequence[Sequence[Graded]]) -> None:
        """Set the own reward of every act. It is proportional to a mean of the act's grade and the grades of later
        rounds, weighted by `influence`."""
        if not self.answer_reward:
            return
        later, weight = 0.0, 0.0
        for answers in reversed(rounds):
            for each in answers:
                each.reply.reward = self.answer_reward * (each.value + later) / (1 + weight)
            later = self.influence * (_right(answers) + later)
            weight = self.influence * (1 + weight)


def revise(graded: GradedTask, replies: Sequence[Reply], number: int) -> list[Message]:
    """The prompt of one debater after a round: the task, its own answer, and the others' answers in a fixed order."""
    others = [reply for i, reply in enumerate(replies) if i != number]
    instruction = f"Your earlier solution:\n{replies[number]}\n\n{listed(others, 'Solution of another')}"
    return graded.prompt(f"{instruction}Solve the problem again, with all of these in mind.")


def decide(graded: GradedTask, replies: Sequence[Reply]) -> list[Message]:
    """Make the judge's prompt. The order of the answers differs from task to task, because in a fixed order the judge
    could learn to trust a position."""
    shuffled = random.Random(graded.task.question).sample(replies, len(replies))
    return graded.prompt(f"{listed(shuffled, 'Solution')}Weigh the solutions and give the final answer.")


def listed(replies: Sequence[Reply], title: str) -> str:
    return "".join(f"{title} {number}:\n{reply}\n\n" for number, reply in enumerate(replies, 1))


def _right(replies: Sequence[Graded]) -> float:
    return sum(each.value for each in replies) / len(replies)
