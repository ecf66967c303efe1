"""Demonstrations of a coder and a tester on tiny programs, with mistakes at a set rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from verl_mas.coding.cases import Case, ShortCase
from verl_mas.config.schema import WorkflowSpec
from verl_mas.execution.executor import Execution
from verl_mas.execution.limits import Answer, Call, Limits, Result, Status
from verl_mas.execution.problem import Problem
from verl_mas.gym.programs import (
    CHANGE,
    COMBINE,
    TWIN,
    Program,
    draw_numbers,
    line,
    problem,
    programs,
    question,
)
from verl_mas.gym.warmup.demonstrations import Lesson, demonstrate
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Request, Task
from verl_mas.workflow.base import resolve

# Shares of `noise`: with which each part other than the condition is random, and a tester errs as a coder does.
_OTHER_PARTS, _TESTS = 0.2, 0.4
# The share of tests with one number; the others have two, and are harder to get right.
_ONE = 0.6


def lessons(*, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless; only training tasks. With probability `noise` a program confuses its condition with its twin, so above
    one half the mistake is more frequent than what is right.

    The single coder has the same prompts.
    """
    rng = random.Random(f"lessons {seed}")
    args = {"text": "compact", "max_turns": 2, "execution": {"executor": f"{__name__}:Interpreter"}}
    team = resolve(WorkflowSpec("coder_tester", args=args))
    found = programs(TRAIN)
    problems: dict[Program, Problem] = {}
    while True:
        program = rng.choice(found)
        of = problems.get(program) or problems.setdefault(program, problem(program, rng))
        task = Task([{"role": "user", "content": question(program, of)}], ground_truth=of.text())
        yield from demonstrate(team, task, ScriptedTeam(program, noise, rng))


class ScriptedTeam:
    """Coder and tester of one task."""

    def __init__(self, program: Program, noise: float, rng: random.Random):
        self._program, self._noise, self._rng = program, noise, rng

    def __call__(self, request: Request) -> str:
        return self._test() if request.agent == "tester" else self._written().code

    def _written(self) -> Program:
        """The program, with mistakes."""
        program, rng = self._program, self._rng
        if rng.random() < self._noise:
            program = replace(program, keep=TWIN[program.keep])
        if rng.random() < self._noise * _OTHER_PARTS:
            program = replace(program, change=rng.choice(list(CHANGE)))
        if rng.random() < self._noise * _OTHER_PARTS:
            program = replace(program, combine=rng.choice(list(COMBINE)))
        return program

    def _test(self) -> str:
        believed = self._written() if self._rng.random() < self._noise * _TESTS else self._program
        while True:
            numbers = draw_numbers(self._rng, 1 if self._rng.random() < _ONE else 2)
            if output := believed.output(numbers):
                return ShortCase().render(Case(line(numbers), output))


class Interpreter:
    """An executor of the programs of an expert, which are known, without a process: thousands per second."""

    def __init__(self, settings: Execution):
        self._known = {program.code: program for split in (TRAIN, TEST) for program in programs(split)}

    def check(self) -> None:
        """Nothing is needed."""

    async def execute(self, program: str, stdin: str = "", limits: Limits | None = None) -> Result:
        output = self._known[program].output(tuple(map(int, stdin.split())))
        return Result(Status.ERROR, exit_code=1) if output is None else Result(Status.OK, output, exit_code=0)

    async def call(self, program: str, calls: Sequence[Call], limits: Limits | None = None) -> list[Answer]:
        raise NotImplementedError("these programs read standard input")

    async def aclose(self) -> None:
        """Nothing was started."""
