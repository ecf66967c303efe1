"""Demonstrations of a guide and a driver: messages that name the goal and shortest ways, with errors at a set rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from verl_mas.config.schema import WorkflowSpec
from verl_mas.gym.guide_driver import COLUMNS, PUZZLE, ROWS, named
from verl_mas.gym.puzzles.boards import Size, board
from verl_mas.gym.puzzles.grid import MOVES
from verl_mas.gym.puzzles.kinds.plan_path import PlanPath
from verl_mas.gym.teams.guide_driver import GuideDriver
from verl_mas.gym.warmup.demonstrations import Lesson
from verl_mas.util.splits import TRAIN
from verl_mas.workflow.base import resolve

# Disjoint from the seeds that reinforcement learning trains on.
_FIRST_SEED = 10_000_000


def tiny_workflow(speaks: str, control: str) -> GuideDriver:
    """The workflow with prompts for a tiny model."""
    args = {"text": "compact", "speaks": speaks, "control": control}
    return cast(GuideDriver, resolve(WorkflowSpec("guide_driver", args=args)))


def lessons(workflow: GuideDriver, size: Size, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless; only training boards, with the workflow's prompts. `noise` is the share of messages that name any cell,
    and of moves that are random. The driver's messages are always right, so that it learns to read them."""
    rng = random.Random(f"lessons {seed}")
    number = _FIRST_SEED * (seed + 1)
    while True:
        puzzle = board(PUZZLE, number, TRAIN, size)
        number += 1
        assert isinstance(puzzle, PlanPath)
        drive = workflow.opening(puzzle, puzzle)
        while not workflow.over(drive):
            if drive.message is None:
                cells = puzzle.board.size
                goal = named(puzzle.board.goal, cells)
                wrong = rng.choice(ROWS[:cells]) + rng.choice(COLUMNS[:cells])
                message = wrong if rng.random() < noise else goal
                yield Lesson("guide", workflow.prompt(drive), workflow.message_codec(drive).render(message))
                drive = replace(drive, message=goal)
            else:
                move = rng.choice(list(MOVES) if rng.random() < noise else drive.puzzle.best_actions())
                yield Lesson("driver", workflow.prompt(drive), workflow.move_codec(drive).render([move]))
                drive = workflow.moved(drive, move)
