"""Reasoners and tool users in parallel, then a judge that reads all proposals (the ensemble of AT-GRPO)."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Annotated, Literal

from verl_mas.config.values import Count, Range
from verl_mas.environment.coding.solutions import Solution, Solve, chosen, compute, computed, equal, reason, reasoned
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.grading.math import BoxedAnswer, ground_truth, math_verify
from verl_mas.workflow import Codec, Message, Outcome, Task, Team, Workflow, instances, register_workflow
from verl_mas.workflow.task import with_instruction
from verl_mas.workflow.team import Agent, Prompt
from verl_mas.workflows._graded import by_answer


@register_workflow("ensemble")
class Ensemble(Workflow):
    """`reasoners` and `tool_users` propose without reading other proposals; the judge's answer is the team's answer."""

    reasoners: Count = 3
    """Number of agents of the role `reasoner`: reasoner_0, reasoner_1, ..."""

    tool_users: Annotated[int, Range(0)] = 0
    """Number of agents of the role `tool_user`, which write Python: tool_user_0, ..."""

    score: Literal["verl", "math"] = "verl"
    """verl: verl's reward function scores the judge's answer. math: the judge's answer and all proposals are compared
    with the ground truth, and every agent branches."""

    execution: Execution = field(default_factory=Execution)
    """How the programs of the tool users are run."""

    @property
    def agents(self) -> Sequence[str]:
        return (*instances("reasoner", self.reasoners), *instances("tool_user", self.tool_users), "judge")

    @property
    def branches(self) -> bool:
        """Whether every act has several candidates. They are compared by their rewards, so `score` must be math."""
        return self.score == "math"

    def answer_form(self, data_source: str | None) -> Codec[str]:
        return BoxedAnswer()

    def check(self) -> None:
        if self.score == "math":
            math_verify.require()
        if self.tool_users:
            self.execution.check()

    async def run(self, task: Task, team: Team) -> Outcome:
        truth = ground_truth(task.ground_truth) if self.score == "math" else None

        async def act(agent: Agent, prompt: Prompt, solve: Solve) -> Solution:
            replies = await agent.branch(prompt) if self.branches else [await agent.act(prompt)]
            return await chosen(team, replies, solve)

        with_box = partial(reasoned, truth=truth)
        with_code = partial(computed, truth=truth, execution=self.execution)
        proposals = await asyncio.gather(
            *[act(reasoner, reason(task), with_box) for reasoner in team.role("reasoner")],
            *[act(tool_user, compute(task), with_code) for tool_user in team.role("tool_user")],
        )
        judged = await act(team.judge, decide(task, proposals), with_box)
        if truth is None:
            return Outcome(answer=judged.reply)
        right = float(judged.right)
        return Outcome(answer=judged.answer, reward=right, info={"acc": right, **await _compared(right, proposals)})


def decide(task: Task, proposals: Sequence[Solution]) -> list[Message]:
    """Make the judge's prompt. The order of the proposals differs from task to task, because in a fixed order the judge
    could learn to trust a position."""
    shuffled = random.Random(task.question).sample(proposals, len(proposals))
    listed = "\n\n".join(f"Proposal {number}:\n{each.report}" for number, each in enumerate(shuffled, 1))
    instruction = f"{listed}\n\nWeigh the proposals and give the final answer. {BoxedAnswer().prompt()}"
    return with_instruction(task.messages, instruction)


async def _compared(judge: float, proposals: Sequence[Solution]) -> Mapping[str, float]:
    """Measure the best proposal and the majority, and whether the judge is better or worse than the majority.

    `majority` is 1 if the most frequent answer is right, else 0. If several answers are equally frequent, `majority` is
    the share of these answers that are right.
    """
    groups = await by_answer(proposals, equal)
    most = max(map(len, groups), default=0)
    leading = [group[0].right for group in groups if len(group) == most]
    majority = sum(leading) / len(leading) if leading else 0.0
    return {
        "best": float(any(proposal.right for proposal in proposals)),
        "majority": majority,
        "judge_better": float(judge > majority),
        "judge_worse": float(judge < majority),
    }
