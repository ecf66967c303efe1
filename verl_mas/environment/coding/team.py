"""Teams in which a coder writes programs for a problem. `Runner` runs the programs on the tests; `CodeTeam` rewards the
programs and is the base class of the workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.environment.coding.prompts import PROMPTS, Words
from verl_mas.environment.execution.executor import Execution, Executor, Limits, Status
from verl_mas.environment.execution.problem import Problem, Stdio, Test, Verdict, run_tests
from verl_mas.workflow import Malformed, Reply, Team, Workflow


@dataclass(frozen=True)
class ProgramAttempt:
    """A program and its results. `program` is None if the reply had no program; `share` is the share of hidden tests
    that the program passed."""

    program: str | None
    compiles: bool = False
    # Whether the program ends without an error on the first example or, if there is no example, on the first test.
    ends: bool = False
    share: float = 0.0

    @property
    def right(self) -> bool:
        return self.share == 1

    @property
    def reward(self) -> float:
        """The coder's own reward: a sum of three parts, weighted as in AT-GRPO."""
        return 0.1 * self.compiles + 0.1 * self.ends + 0.8 * self.share


def give_team_parts(replies: Sequence[Reply], values: Sequence[float]) -> None:
    """Set the team's part of each candidate's reward. If there is only one candidate, its team part stays the session's
    reward."""
    if len(replies) > 1:
        for reply, value in zip(replies, values, strict=True):
            reply.team_reward = value


@dataclass(frozen=True)
class Runner:
    """Runs programs for one problem."""

    problem: Problem
    executor: Executor
    limits: Limits

    @classmethod
    def of(cls, ground_truth: object, execution: Execution) -> Runner:
        problem = Problem.read(ground_truth)
        return cls(problem, execution.open(), problem.limits(execution.limits))

    async def verdicts(self, program: str, tests: Sequence[Test]) -> list[Verdict]:
        return await run_tests(self.executor, program, tests, self.limits)

    async def attempts(self, programs: Sequence[str | None]) -> list[ProgramAttempt]:
        """Run each program on the hidden tests; equal programs run once."""
        distinct = list(dict.fromkeys(programs))
        attempts = dict(zip(distinct, await asyncio.gather(*map(self._attempt, distinct)), strict=True))
        return [attempts[program] for program in programs]

    async def _attempt(self, program: str | None) -> ProgramAttempt:
        if program is None:
            return ProgramAttempt(None)
        first = (*self.problem.examples, *self.problem.tests)[0]
        ran = await self.executor.execute(program, first.input if isinstance(first, Stdio) else "", self.limits)
        if ran.status is Status.SYNTAX_ERROR:
            return ProgramAttempt(program)
        if ran.status is Status.TIMED_OUT:
            # Skip the hidden tests, because the program would most likely reach the time limit on each of them, too.
            return ProgramAttempt(program, compiles=True)
        passed = [verdict.passed for verdict in await self.verdicts(program, self.problem.tests)]
        return ProgramAttempt(program, True, ran.ok, sum(passed) / len(passed))


@dataclass(frozen=True)
class Written:
    """The coder's act of one turn: all candidates, and the committed candidate."""

    candidates: Sequence[ProgramAttempt]
    committed: ProgramAttempt


class CodeTeam(Workflow):
    """Base class: subclasses define `agents` and `run`, and this class runs and rewards the coder's programs.

    Hidden tests affect only the rewards: no prompt contains them, and no session ends because of them.
    """

    branches = True
    max_turns: Count = 4
    """The maximum number of turns. In a turn every agent acts once."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few characters, for tiny models."""

    reward: Literal["dense", "sparse"] = "dense"
    """dense: the share of hidden tests passed, and a local part per act. sparse: 1 if all are passed, else 0."""

    execution: Execution = field(default_factory=Execution)
    """How the programs are run."""

    @property
    def sparse(self) -> bool:
        return self.reward == "sparse"

    @property
    def prompts(self) -> Words:
        return PROMPTS[self.text]

    def check(self) -> None:
        self.execution.check()

    async def committed(self, team: Team, runner: Runner, replies: Sequence[Reply]) -> Written:
        """Run and reward each of the coder's candidates, and commit one."""
        attempts = await runner.attempts([self.program(reply) for reply in replies])
        for reply, attempt in zip(replies, attempts, strict=True):
            reply.reward = 0.0 if self.sparse else attempt.reward
        give_team_parts(replies, [self.value(attempt) for attempt in attempts])
        return Written(attempts, dict(zip(replies, attempts, strict=True))[team.commit(replies)])

    def program(self, reply: Reply) -> str | None:
        code = reply.parse(self.prompts.program)
        return None if isinstance(code, Malformed) else code

    def value(self, attempt: ProgramAttempt) -> float:
        """The team's reward for a program."""
        return float(attempt.right) if self.sparse else attempt.share
