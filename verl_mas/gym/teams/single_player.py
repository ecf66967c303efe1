"""One agent plays the puzzle alone: the control for a team on the same boards."""

from __future__ import annotations

from verl_mas.gym.puzzles.base import Puzzle
from verl_mas.gym.puzzles.game import COMPACT, Choose, Play
from verl_mas.workflow import register_workflow


@register_workflow("single_player")
class SinglePlayer(Play):
    """One agent plays the puzzle alone: the control for a team on the same boards."""

    agents = ("player",)

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        return (await choose("player", puzzle, self.prompt(puzzle))).score.after

    def prompt(self, puzzle: Puzzle) -> str:
        if self.text == COMPACT:
            return puzzle.compact()
        return f"{self.scene(puzzle)}\n\n{self.codec(puzzle).prompt()}"
