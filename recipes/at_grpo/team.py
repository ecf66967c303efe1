"""The puzzle team of AT-GRPO: a tool user, whose program proposes actions, and a planner, which decides."""

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from verl_mas.environment.execution.executor import Execution
from verl_mas.gym.puzzles.game import FORMAT, Choose, Play, PuzzleAttempt
from verl_mas.gym.puzzles.puzzle import Puzzle
from verl_mas.workflow import CodeBlock, Malformed, Reply, register_workflow


@register_workflow("tool_user_planner")
class ToolUserPlanner(Play):
    """A tool user writes a program, and a planner decides with its output. If the program fails or prints no action
    list, the reply is scored as malformed, but without the part of the penalty that is for the reply's format."""

    agents = ("tool_user", "planner")
    text: Literal["words"] = "words"
    """Writing programs needs a language model, which reads words."""

    execution: Execution = field(default_factory=Execution)
    """How the programs are run."""

    def check(self) -> None:
        super().check()
        self.execution.check()

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        printed = await choose("tool_user", puzzle, self.program(puzzle))
        return (await choose("planner", puzzle, self.decide(puzzle, printed.readable))).after

    async def attempt(self, reply: Reply, puzzle: Puzzle, among: int) -> PuzzleAttempt:
        if reply.role != "tool_user":
            return await super().attempt(reply, puzzle, among)
        code = reply.parse(CodeBlock())
        if isinstance(code, Malformed):
            return self.scored(reply, code, puzzle, among)
        ran = await self.execution.open().execute(code, limits=self.execution.limits)
        actions = Malformed(ran.error) if ran.error is not None else self.codec(puzzle).parse(ran.stdout)
        attempt = self.scored(reply, actions, puzzle, among)
        if self.dense and isinstance(actions, Malformed) and reply.reward is not None:
            # The reply had the right form, so take back the penalty for the format.
            reply.reward += FORMAT
        return attempt

    def program(self, puzzle: Puzzle) -> str:
        return (
            f"{self.scene(puzzle)}\n\nWrite a Python program that works out the next actions and prints them. "
            f"What it prints: {self.codec(puzzle).prompt()} {CodeBlock().prompt()}"
        )

    def decide(self, puzzle: Puzzle, printed: Sequence[str]) -> str:
        text = " ".join(printed) or "nothing that can be read"
        return (
            f"{self.scene(puzzle)}\n\nA program of your team printed: {text}\n\nYou decide: take over what is "
            f"right, correct what is wrong. {self.codec(puzzle).prompt()}"
        )
