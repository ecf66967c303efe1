"""A planner and an executor learn Plan-Path by AT-GRPO, with one tiny policy warmed up on noisy demonstrations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from verl_mas.gym.demos.team import Curves, Settings, TeamDemo
from verl_mas.gym.puzzles.data import lessons, tiny_workflow
from verl_mas.gym.puzzles.puzzle import Puzzle, board, write_boards
from verl_mas.gym.warmup import WarmUp, warm_up
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.util.text import printable
from verl_mas.workflow import ActionList, Malformed

PUZZLE, SIZE = "plan_path", {"size": 4}
PRACTICE = SIZE | {"min_distance": 5}  # far goals teach more than near ones
NOISE = 0.72
FIRST_TEST = 10_000  # the settings were chosen on held-out boards with lower numbers


class PlanPathDemo(TeamDemo):
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


run = PlanPathDemo().run


def draw(puzzle: Puzzle, session: Mapping[str, Any], codec: ActionList, acting: str) -> str:
    """The boards of all turns, side by side, below the replies. The actions of the agent `acting` are applied."""
    panels = [["start", "", *puzzle.render().splitlines()]]
    replies: list[str] = []
    for act in session["acts"]:
        if not act["committed"]:
            continue
        replies.append(f"{act['agent'][0]}: {printable(act['text'], keep='') or '(empty)'}")
        if act["agent"] != acting:
            continue
        actions = codec.parse(act["text"])
        for action in () if isinstance(actions, Malformed) else actions:
            if not puzzle.solved:
                puzzle.step(action)
        panels.append([*replies, *[""] * (2 - len(replies)), *puzzle.render().splitlines()])
        replies = []
    ending = "solved" if puzzle.solved else "not solved"
    return f"{_side_by_side(panels)}\n{ending} after {len(panels) - 1} turns"


def _side_by_side(panels: list[list[str]]) -> str:
    widths = [max(map(len, panel)) for panel in panels]
    lines = zip_longest(*panels, fillvalue="")
    return "\n".join("   ".join(map(str.ljust, cells, widths)).rstrip() for cells in lines)
