"""A planner sketches the next actions; an executor reads the board and the sketch and decides the actions."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.gym.puzzles.base import Puzzle
from verl_mas.gym.puzzles.game import COMPACT, Choose, Play
from verl_mas.workflow import register_workflow

# The last word of a compact prompt, from which a tiny model that has both roles knows which one to play.
PLANNER, EXECUTOR = "P", "E"
NO_SKETCH = "-"


@register_workflow("planner_executor")
class PlannerExecutor(Play):
    """Each act branches (`mas.branch.k`). A sketch is scored as if it were executed, but does not change the board."""

    agents = ("planner", "executor")

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        sketch = await choose("planner", puzzle, self.plan(puzzle))
        moved = await choose("executor", puzzle, self.execute(puzzle, sketch.readable))
        return moved.score.after

    def plan(self, puzzle: Puzzle) -> str:
        if self.text == COMPACT:
            return f"{puzzle.compact()} {PLANNER}"
        return (
            f"{self.scene(puzzle)}\n\nYou plan for a team of two: propose the next actions. "
            f"The executor reads them and decides. {self.codec(puzzle).prompt()}"
        )

    def execute(self, puzzle: Puzzle, sketch: Sequence[str]) -> str:
        if self.text == COMPACT:
            return " ".join([puzzle.compact(), "".join(sketch) or NO_SKETCH, EXECUTOR])
        proposal = " ".join(sketch) or "nothing that can be read"
        return (
            f"{self.scene(puzzle)}\n\nThe planner proposes: {proposal}\n\nYou decide for the team: take over what is "
            f"right, correct what is wrong. {self.codec(puzzle).prompt()}"
        )
