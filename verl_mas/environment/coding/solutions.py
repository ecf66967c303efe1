"""Solutions of math problems: reasoning that ends in a box, and programs that print the answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from verl_mas.environment.coding.team import give_team_parts
from verl_mas.environment.execution.executor import Execution, Result, Status
from verl_mas.environment.grading.math import BoxedAnswer, Grade, legible, shared_checker
from verl_mas.workflow import CodeBlock, Malformed, Message, Reply, Task, Team, with_instruction

# Limit for a program's output, which is part of later prompts.
MAX_OUTPUT_CHARS = 1_000
# Weights of the local parts of a reward, as in AT-GRPO.
FORM, COMPILES, PRINTS, RIGHT = 0.2, 0.1, 0.1, 0.8


@dataclass(frozen=True)
class Solution:
    """One candidate solution. `answer` is None if no answer can be read. `report` is the text that stands for the
    candidate in later prompts."""

    reply: Reply
    answer: str | None
    report: str
    right: bool = False


# A function that reads a candidate's reply and sets the reply's own reward.
Solve = Callable[[Reply], Awaitable[Solution]]


async def chosen(team: Team, replies: Sequence[Reply], solve: Solve) -> Solution:
    """Reward each candidate, and commit one of them. With several candidates, the team part of a candidate's reward is
    1 if the candidate is right, else 0."""
    solutions = await asyncio.gather(*map(solve, replies))
    give_team_parts(replies, [float(solution.right) for solution in solutions])
    return dict(zip(replies, solutions, strict=True))[team.commit(replies)]


def reason(task: Task, before: str = "") -> list[Message]:
    return with_instruction(task.messages, f"{before}Solve the problem step by step. {BoxedAnswer().prompt()}")


def compute(task: Task, before: str = "") -> list[Message]:
    return with_instruction(
        task.messages,
        f"{before}Solve the problem with a Python program of your own that prints nothing but the final answer. "
        f"{CodeBlock().prompt()}",
    )


async def reasoned(reply: Reply, truth: str | None) -> Solution:
    """Reward a reasoned reply: 0.2 for a box, and 0.8 for a right answer. Without a ground truth, set no reward."""
    boxed = reply.parse(BoxedAnswer())
    answer = None if isinstance(boxed, Malformed) else boxed
    if truth is None:
        return Solution(reply, answer, reply.text)
    right = await equal(truth, answer)
    reply.reward = FORM * (answer is not None) + RIGHT * right
    return Solution(reply, answer, reply.text, right)


async def computed(reply: Reply, truth: str | None, execution: Execution) -> Solution:
    """Reward a program: 0.1 if it compiles, 0.1 for a readable output, and 0.8 for a right answer. Without a ground
    truth, set no reward."""
    code = reply.parse(CodeBlock())
    if isinstance(code, Malformed):
        ran = Result(Status.SYNTAX_ERROR, stderr=code.reason)
    else:
        ran = await execution.open().execute(code, limits=execution.limits)
    answer = legible(ran.last_line)
    output = f"It printed: {ran.last_line}" if ran.error is None else f"It failed: {ran.error}"
    report = f"{reply.text}\n{output[:MAX_OUTPUT_CHARS]}"
    if truth is None:
        return Solution(reply, answer, report)
    right = await equal(truth, answer)
    compiles = ran.status is not Status.SYNTAX_ERROR
    reply.reward = COMPILES * compiles + PRINTS * (answer is not None) + RIGHT * right
    return Solution(reply, answer, report, right)


async def equal(truth: str, answer: str | None) -> bool:
    """Whether the answer is mathematically equal to the ground truth; False if the answer is missing."""
    return await shared_checker().agrade(truth, answer) is Grade.CORRECT
