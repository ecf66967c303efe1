"""Teams that play a puzzle, and a single agent that plays the puzzle alone, as the control for these teams."""

from collections.abc import Sequence

from verl_mas.gym.puzzles.game import COMPACT, Choose, Play
from verl_mas.gym.puzzles.puzzle import Puzzle
from verl_mas.workflow import register_workflow


@register_workflow("single_player")
class SinglePlayer(Play):
    """One agent plays the puzzle alone: the control for a team on the same boards."""

    agents = ("player",)

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        return (await choose("player", puzzle, self.prompt(puzzle))).after

    def prompt(self, puzzle: Puzzle) -> str:
        if self.text == COMPACT:
            return puzzle.compact()
        return f"{self.scene(puzzle)}\n\n{self.codec(puzzle).prompt()}"


# The last word of a compact prompt. It tells a tiny model that plays both roles which role it has in this prompt.
PLANNER, EXECUTOR = "P", "E"
NO_SKETCH = "-"


@register_workflow("planner_executor")
class PlannerExecutor(Play):
    """A planner sketches the next actions, and an executor decides. Each act branches (`mas.branch.k`). A sketch is
    scored as if it were executed, but does not change the board."""

    agents = ("planner", "executor")

    async def turn(self, puzzle: Puzzle, choose: Choose) -> Puzzle:
        sketch = await choose("planner", puzzle, self.plan(puzzle))
        moved = await choose("executor", puzzle, self.execute(puzzle, sketch.readable))
        return moved.after

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
