"""A planner and an executor learn Plan-Path by AT-GRPO, with one tiny policy warmed up on noisy demonstrations."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from verl_mas.gym.demos.puzzle_session import draw
from verl_mas.gym.demos.team import Curves, Settings, TeamDemo
from verl_mas.gym.puzzles.boards import board, write_boards
from verl_mas.gym.warmup.puzzles import lessons, tiny_workflow
from verl_mas.gym.warmup.train import WarmUp, warm_up
from verl_mas.util.splits import TEST, TRAIN

PUZZLE, SIZE = "plan_path", {"size": 4}
# Far goals teach more than near ones.
PRACTICE = SIZE | {"min_distance": 5}
NOISE = 0.72
# The settings were chosen on held-out boards with lower numbers.
FIRST_TEST = 10_000


class PlanPath(TeamDemo):
    name = "plan_path"
    title = "Plan-Path: a planner sketches the next moves, an executor decides. One tiny policy plays both."
    team = ("+mas=planner_executor",)
    recipe = "plan_path/laptop"
    folder = Path("runs/demo_plan_path")
    success = "val-core/plan_path/acc/mean@1"
    solved = "the held-out grids solved"
    # A role has its own gradient if it has its own policy.
    measured: ClassVar[Curves] = {
        "success on held-out grids": {"team": success},
        "reward": {"planner": "agent/planner/reward/score", "executor": "agent/executor/reward/score"},
        "gradient norm": {
            "team": "actor/grad_norm",
            "planner": "policy/planner/actor/grad_norm",
            "executor": "policy/executor/actor/grad_norm",
        },
        "tokens per second": {"team": "perf/throughput"},
    }
    warm_up = WarmUp(steps=9000, lessons=700_000)

    def version(self, settings: Settings) -> object:
        return [NOISE, asdict(self.warm_up), PRACTICE, SIZE, FIRST_TEST, settings["mas"]["workflow"]["args"]]

    def make(self, settings: Settings, progress: Callable[[int, float], None]) -> None:
        write_boards(self.folder / "train.parquet", PUZZLE, PRACTICE, TRAIN, 4096)
        write_boards(self.folder / "test.parquet", PUZZLE, SIZE, TEST, 400, FIRST_TEST)
        workflow = tiny_workflow("planner_executor", settings["mas"]["workflow"]["args"])
        warm_up(self.folder / "model", lessons(workflow, PUZZLE, PRACTICE, noise=NOISE), self.warm_up, progress)

    def draw(self, step: int, settings: Settings) -> str:
        sessions = self.sessions(step)
        index = random.Random(0).choice(sorted(sessions))
        puzzle = board(PUZZLE, index, TEST, SIZE)
        workflow = tiny_workflow("planner_executor", settings["mas"]["workflow"]["args"])
        return draw(puzzle, sessions[index], workflow.codec(puzzle), acting="executor")


run = PlanPath().run
