"""A reasoner and a writer of Python solve the problem side by side, and stop when they agree (AT-GRPO's math team)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from verl_mas.config.values import Count
from verl_mas.execution.executor import Executor, RunResult, executor
from verl_mas.grading.math import (
    BoxedAnswer,
    Grade,
    ground_truth,
    legible,
    require_math_verify,
    shared_checker,
)
from verl_mas.workflow import (
    CodeBlock,
    Malformed,
    Message,
    Outcome,
    Reply,
    Task,
    Team,
    Workflow,
    register_workflow,
    with_instruction,
)

# What a program said goes into prompts.
MAX_TOLD_CHARS = 1_000


@dataclass(frozen=True)
class Attempt:
    """One candidate of one agent, read and graded."""

    reply: Reply
    answer: str | None
    shown: str
    right: bool


@register_workflow("reasoner_tool_user")
class ReasonerToolUser(Workflow):
    """Up to `max_turns` rounds. The tool user sees the reasoner's solution; both see the round before.

    A candidate earns the team's reward if its answer is right, and of its own 0.2 for the form (reasoner: a box; tool
    user: a block of code 0.1 that prints something 0.1) and 0.8 for a right answer.
    """

    agents = ("reasoner", "tool_user")
    branches = True
    max_turns: Count = 4
    """Rounds at most."""

    executor: str | None = None
    """The async function that runs code, `package.module:function`."""

    def check(self) -> None:
        require_math_verify()
        executor(self.executor)

    async def run(self, task: Task, team: Team) -> Outcome:
        execute = executor(self.executor)
        truth = ground_truth(task.ground_truth)
        reasoned = computed = None
        turns = 0
        agreed = False
        while turns < self.max_turns and not agreed:
            turns += 1
            thoughts = await team.reasoner.branch(think(task, reasoned, computed))
            reasoned = _committed(team, await asyncio.gather(*[_read(truth, reply) for reply in thoughts]))
            programs = await team.tool_user.branch(program(task, reasoned, computed))
            computed = _committed(team, await asyncio.gather(*[_executed(truth, reply, execute) for reply in programs]))
            agreed = await _same(reasoned.answer, computed.answer)
        final = reasoned if reasoned and reasoned.answer is not None else computed
        return Outcome(
            answer=final.answer if final else None,
            reward=float(final is not None and final.right),
            info={"acc": float(final is not None and final.right), "turns": turns, "agreed": float(agreed)},
        )


def think(task: Task, reasoned: Attempt | None, computed: Attempt | None) -> list[Message]:
    return with_instruction(
        task.messages, f"{_before(reasoned, computed)}Solve the problem step by step. {BoxedAnswer().prompt()}"
    )


def program(task: Task, reasoned: Attempt, computed: Attempt | None) -> list[Message]:
    return with_instruction(
        task.messages,
        f"{_before(reasoned, computed)}Solve the problem with a Python program of your own that prints nothing but "
        f"the final answer. {CodeBlock().prompt()}",
    )


def _before(reasoned: Attempt | None, computed: Attempt | None) -> str:
    parts = []
    if reasoned is not None:
        parts.append(f"A colleague's solution:\n{reasoned.shown}")
    if computed is not None:
        parts.append(f"A program:\n{computed.shown}")
    return "".join(f"{part}\n\n" for part in parts)


async def _read(truth: str, reply: Reply) -> Attempt:
    boxed = reply.parse(BoxedAnswer())
    answer = None if isinstance(boxed, Malformed) else boxed
    right = await _right(truth, answer)
    reply.reward = 0.2 * (answer is not None) + 0.8 * right
    reply.team_reward = float(right)
    return Attempt(reply, answer, reply.text, right)


async def _executed(truth: str, reply: Reply, execute: Executor) -> Attempt:
    code = reply.parse(CodeBlock())
    ran = RunResult(error=code.reason) if isinstance(code, Malformed) else await execute(code)
    answer = legible(ran.last_line)
    right = await _right(truth, answer)
    reply.reward = 0.1 * (not isinstance(code, Malformed)) + 0.1 * (ran.last_line is not None) + 0.8 * right
    reply.team_reward = float(right)
    told = f"It printed: {ran.last_line}" if ran.error is None else f"It failed: {ran.error}"
    return Attempt(reply, answer, f"{reply.text}\n{told[:MAX_TOLD_CHARS]}", right)


def _committed(team: Team, attempts: Sequence[Attempt]) -> Attempt:
    chosen = team.commit([attempt.reply for attempt in attempts])
    return next(attempt for attempt in attempts if attempt.reply is chosen)


async def _right(truth: str, answer: str | None) -> bool:
    return await shared_checker().agrade(truth, answer) is Grade.CORRECT


async def _same(one: str | None, other: str | None) -> bool:
    """Whether they agree; having no answer is no agreement."""
    return one is not None and await _right(one, other)
