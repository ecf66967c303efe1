"""The team of AT-GRPO: a tool user writes Python that prints an action list; the planner reads it and decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from verl_mas.execution.executor import Execution
from verl_mas.gym.puzzles.base import Puzzle
from verl_mas.gym.puzzles.game import Attempt, Choose, Play
from verl_mas.workflow import CodeBlock, Malformed, Reply, register_workflow


@register_workflow("tool_user_planner")
class ToolUserPlanner(Play):
    """A program that fails or prints no action list is scored as a malformed reply, plus the reward for the right form
    of the reply.
    """

    agents = ("tool_user", "planner")
    text: Literal["words"] = "words"
    """Writing programs needs a language model, which reads words."""

    execution: Execution = field(default_factory=Execution)
    """How the programs are run."""

    def check(self) -> None:
        super().check()
        self.execution.check()

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        found = await choose("tool_user", puzzle, self.program(puzzle))
        return (await choose("planner", puzzle, self.decide(puzzle, found.readable))).score.after

    async def attempt(self, reply: Reply, puzzle: Puzzle, among: int) -> Attempt:
        if reply.role != "tool_user":
            return await super().attempt(reply, puzzle, among)
        code = reply.parse(CodeBlock())
        if isinstance(code, Malformed):
            return self.scored(reply, code, puzzle, among)
        ran = await self.execution.open().execute(code, limits=self.execution.limits)
        actions = Malformed(ran.error) if ran.error is not None else self.codec(puzzle).parse(ran.stdout)
        attempt = self.scored(reply, actions, puzzle, among)
        if self.weights and isinstance(actions, Malformed) and reply.reward is not None:
            # The form was right, the result was not.
            reply.reward += self.weights.format
        return attempt

    def program(self, puzzle: Puzzle) -> str:
        return (
            f"{self.scene(puzzle)}\n\nWrite a Python program that works out the next actions and prints them. "
            f"What it prints: {self.codec(puzzle).prompt()} {CodeBlock().prompt()}"
        )

    def decide(self, puzzle: Puzzle, found: Sequence[str]) -> str:
        printed = " ".join(found) or "nothing that can be read"
        return (
            f"{self.scene(puzzle)}\n\nA program of your team printed: {printed}\n\nYou decide: take over what is "
            f"right, correct what is wrong. {self.codec(puzzle).prompt()}"
        )
