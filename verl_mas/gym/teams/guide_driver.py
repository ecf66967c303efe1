"""A guide sees the map and not the driver; a driver sees what is around it and not the map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from verl_mas.config.values import Count
from verl_mas.gym.guide_driver import COLUMNS, ROWS, boards_of, named
from verl_mas.gym.puzzles.game import COMPACT
from verl_mas.gym.puzzles.grid import FREE, MOVES, WALL
from verl_mas.gym.puzzles.kinds.plan_path import GOAL, PlanPath
from verl_mas.gym.states import States
from verl_mas.workflow import ActionList, Malformed, Outcome, Reply, Task, Team, register_workflow
from verl_mas.workflow.codecs.letters import Letters

# The last mark of a compact prompt: which role is asked.
GUIDE_MARK, DRIVER_MARK = "G", "D"
# In a compact prompt: no move yet, nothing that could be read.
NONE = "-"
# Of the guide's message: a row and a column.
WORDS = 2


@dataclass(frozen=True)
class Drive:
    """Where a drive is. `seen` is the board that the guide sees, `message` what it wrote last; None: it is to write."""

    puzzle: PlanPath
    seen: PlanPath
    message: str | None
    moved: int = 0
    last: str = NONE

    def copy(self) -> Drive:
        return replace(self, puzzle=self.puzzle.copy())


@register_workflow("guide_driver")
class GuideDriver(States[Drive]):
    """The guide writes two letters, the driver makes one move per act. Reaching the goal alone is rewarded."""

    agents = ("guide", "driver")

    max_turns: Count = 6
    """The maximum number of moves."""

    speaks: Literal["once", "every_turn"] = "once"
    """once: the guide writes before the first move. every_turn: before each move; it then knows the last one."""

    control: Literal["none", "all", "part"] = "none"
    """none: the team. all, part: the driver acts alone. It sees everything, which is the ceiling, or no map and no
    goal, which is the floor."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few letters, for tiny models."""

    async def run(self, task: Task, team: Team) -> Outcome:
        puzzle, seen = boards_of(task.extra_info)
        return await self.play(self.opening(puzzle, seen), team)

    def opening(self, puzzle: PlanPath, seen: PlanPath) -> Drive:
        return Drive(puzzle, seen, None if self.control == "none" else "")

    def over(self, state: Drive) -> bool:
        return state.puzzle.solved or state.moved == self.max_turns

    def actor(self, state: Drive) -> str:
        return "guide" if state.message is None else "driver"

    def after(self, reply: Reply, state: Drive) -> Drive:
        if state.message is None:
            written = reply.parse(self.message_codec(state))
            return replace(state, message="" if isinstance(written, Malformed) else written)
        moves = reply.parse(self.move_codec(state))
        return self.moved(state, None if isinstance(moves, Malformed) else moves[0])

    def outcome(self, state: Drive) -> Outcome:
        solved = float(state.puzzle.solved)
        return Outcome(answer=state.puzzle.render(), reward=solved, info={"acc": solved, "turns": state.moved})

    def moved(self, drive: Drive, move: str | None) -> Drive:
        """A move that is not legal, or could not be read (None), changes nothing on the board."""
        puzzle = drive.puzzle.copy()
        if move is not None:
            puzzle.step(move)
        asks_again = self.speaks == "every_turn" and self.control == "none"
        return Drive(puzzle, drive.seen, None if asks_again else drive.message, drive.moved + 1, move or NONE)

    def message_codec(self, drive: Drive) -> Letters:
        size = drive.seen.board.size
        return Letters(ROWS[:size] + COLUMNS[:size], WORDS, None if self.text == COMPACT else "message")

    def move_codec(self, drive: Drive) -> ActionList:
        tag = None if self.text == COMPACT else "actions"
        return ActionList(drive.puzzle.action_pattern, 1, tag, drive.puzzle.action_help)

    def prompt(self, state: Drive) -> str:
        return self._compact(state) if self.text == COMPACT else "\n\n".join(self._words(state))

    def _compact(self, drive: Drive) -> str:
        if drive.message is None:
            last = drive.last if self.speaks == "every_turn" else ""
            return f"{_map(drive.seen)}{last}{GUIDE_MARK}"
        if self.control == "all":
            return f"{_map(drive.puzzle)}{_around(drive)}{drive.last}{DRIVER_MARK}"
        return f"{_around(drive)}{drive.last}{drive.message or NONE}{DRIVER_MARK}"

    def _words(self, drive: Drive) -> list[str]:
        size = drive.puzzle.board.size
        names = f"Rows are {', '.join(ROWS[:size])} from the top, columns {', '.join(COLUMNS[:size])} from the left."
        if drive.message is None:
            picture = drive.seen.board.picture
            moved = f"The driver's last move: {drive.last}." if drive.last != NONE else "The driver has not moved yet."
            return [
                f"You guide a driver who does not see this map: walls {WALL}, free cells {FREE}, goal {GOAL}. {names}",
                picture,
                "You do not see the driver. " + (moved if self.speaks == "every_turn" else ""),
                self.message_codec(drive).prompt(),
            ]
        sides = ", ".join(f"{move} {kind}" for move, kind in zip(MOVES, _sides(drive.puzzle), strict=True))
        return [
            f"You drive to a goal on a map of {size} by {size} cells. {names}",
            *([drive.puzzle.render()] if self.control == "all" else []),
            f"You are at {named(drive.puzzle.at, size)}. Around you: {sides} ({WALL} is a wall). "
            f"Your last move: {drive.last}.",
            *(
                [f"The guide, who sees the goal and not you, wrote: {drive.message or 'nothing that can be read'}"]
                if self.control == "none"
                else []
            ),
            self.move_codec(drive).prompt(),
        ]


def _map(puzzle: PlanPath) -> str:
    board = puzzle.board
    return f"{board.layout}{named(board.goal, board.size)}"


def _around(drive: Drive) -> str:
    """Row and column of the driver, and the cells up, down, left and right of it."""
    return named(drive.puzzle.at, drive.puzzle.board.size) + _sides(drive.puzzle)


def _sides(puzzle: PlanPath) -> str:
    return "".join(FREE if move in puzzle.board.moves[puzzle.at] else WALL for move in MOVES)
