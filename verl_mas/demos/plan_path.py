"""A planner and an executor learn Plan-Path by AT-GRPO, with one tiny policy warmed up on noisy demonstrations."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from verl_mas.demos import curves
from verl_mas.demos.live import Run
from verl_mas.demos.metrics import Step, series
from verl_mas.demos.puzzle_session import draw
from verl_mas.errors import ConfigError
from verl_mas.puzzles.boards import board, write_boards
from verl_mas.run_folder.checkpoints import latest
from verl_mas.splits import TEST, TRAIN
from verl_mas.warmup.puzzles import lessons, tiny_workflow
from verl_mas.warmup.train import WarmUp, warm_up

RECIPE = files("verl_mas.config.hydra") / "recipe" / "plan_path" / "laptop.yaml"
# Not the recipe's own folder, so that neither resumes from the other's checkpoints.
FOLDER = Path("runs/demo")
PUZZLE, SIZE = "plan_path", {"size": 4}
# Far goals teach more than near ones.
PRACTICE = SIZE | {"min_distance": 5}
NOISE = 0.72
WARM_UP = WarmUp(steps=9000, lessons=700_000)
# The settings were chosen on held-out boards with lower numbers.
FIRST_TEST = 10_000
STEPS = "trainer.total_training_steps"
SUCCESS = "val-core/plan_path/acc/mean@1"
LOW, HIGH = "val-core/plan_path/pass@1/low", "val-core/plan_path/pass@1/high"
# The metrics to display: what is measured -> of whom -> key. A role has its own gradient if it has its own policy.
MEASURED = {
    "success on held-out grids": {"team": SUCCESS},
    "reward": {"planner": "mas/planner/reward/score", "executor": "mas/executor/reward/score"},
    "gradient norm": {
        "team": "actor/grad_norm",
        "planner": "mas/planner/actor/grad_norm",
        "executor": "mas/executor/actor/grad_norm",
    },
    "tokens per second": {"team": "perf/throughput"},
}


def run(overrides: list[str], console: Console, *, fresh: bool = False) -> None:
    """Train to the end, from the last checkpoint if there is one. `fresh` deletes it first."""
    settings: dict[str, Any] = yaml.safe_load(RECIPE.read_text())
    steps_in_all = _steps_in_all(overrides, settings)
    if fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    console.print("Plan-Path: a planner sketches the next moves, an executor decides. One tiny policy plays both.")
    prepare(settings, console)
    checkpoint = latest(FOLDER / "checkpoints")
    done = checkpoint.step if checkpoint else 0
    training = Run(
        overrides=[
            *("+platform=cpu", "+mas=planner_executor", "+recipe=plan_path/laptop"),
            *(f"data.train_files={FOLDER}/train.parquet", f"data.val_files={FOLDER}/test.parquet"),
            *(f"actor_rollout_ref.model.path={FOLDER}/model", f"trainer.default_local_dir={FOLDER}/checkpoints"),
            *overrides,
        ],
        folder=FOLDER,
        steps_in_all=steps_in_all,
        resume=done > 0,
        table=table,
    )
    if done < steps_in_all:
        if done:
            console.print(f"resumes from step {done}; --fresh starts over")
        training.watch(SUCCESS, console)
    else:
        console.print(f"already trained to step {done}; --fresh starts over")
    _report(training, training.steps(), settings, console)


def _steps_in_all(overrides: list[str], settings: dict[str, Any]) -> int:
    """The number of training steps: the last override, or the recipe's."""
    given = [text.partition("=")[2] for text in overrides if text.lstrip("+").startswith(f"{STEPS}=")]
    steps = given[-1] if given else settings["trainer"]["total_training_steps"]
    if not str(steps).isdecimal() or int(steps) < 1:
        raise ConfigError(f"{STEPS}={steps}", rule="a whole number, at least 1", fix="leave it out")
    return int(steps)


def prepare(settings: dict[str, Any], console: Console) -> None:
    """Write boards and the warmed-up model, unless an earlier demo has."""
    done = FOLDER / "model" / "warm"
    made = json.dumps([NOISE, asdict(WARM_UP), PRACTICE, SIZE, FIRST_TEST, settings["mas"]["workflow"]["args"]])
    if done.exists():
        if done.read_text() != made:
            raise ConfigError(
                str(FOLDER),
                rule="the folder's boards and model are from this version of the demo",
                fix="verl-mas demo --fresh",
            )
        return
    # One bar is enough.
    disable_progress_bar()
    write_boards(FOLDER / "train.parquet", PUZZLE, PRACTICE, TRAIN, 4096)
    write_boards(FOLDER / "test.parquet", PUZZLE, SIZE, TEST, 400, FIRST_TEST)
    workflow = tiny_workflow("planner_executor", settings["mas"]["workflow"]["args"])
    with console.status("warm-up") as status:
        warm_up(
            FOLDER / "model",
            lessons(workflow, PUZZLE, PRACTICE, noise=NOISE),
            WARM_UP,
            lambda step, loss: status.update(f"warm-up on demonstrations: step {step} of {WARM_UP.steps}, {loss:.2f}"),
        )
    done.write_text(made)


def table(steps: list[Step]) -> Table:
    """The last value and the curve of every metric."""
    grid = Table(box=None, show_header=False)
    for measured, of in MEASURED.items():
        for who, key in of.items():
            _, values = series(steps, key)
            if values:
                grid.add_row(measured, who, f"{values[-1]:.2f}", curves.sparkline(values))
    return grid


def _report(run: Run, steps: list[Step], settings: dict[str, Any], console: Console) -> None:
    picture = FOLDER / "curves.png"
    curves.plot(steps, MEASURED, picture, "Plan-Path")
    validated = [step for step in steps if SUCCESS in step.values]
    for when, step in (("before", validated[0]), ("after", validated[-1])):
        values = step.values
        interval = f" (95 % interval {values[LOW]:.3f} to {values[HIGH]:.3f})" if LOW in values else ""
        console.print(f"\n{when}: {values[SUCCESS]:.3f} of the held-out grids solved{interval}")
        console.print(_session(step.number, settings), markup=False, highlight=False)
    for what, file in (("curves", picture), ("metrics", run.metrics), ("log", run.log)):
        console.print(f"{what:8} {file}")


def _session(step: int, settings: dict[str, Any]) -> str:
    """One held-out session of a validation, on the same board at every step."""
    from verl_mas.rollout.trajectories import read_sessions

    sessions = {
        session["task"]["index"]: session
        for session in read_sessions(FOLDER / "checkpoints" / "trajectories", validate=True, step=step)
    }
    index = random.Random(0).choice(sorted(sessions))
    puzzle = board(PUZZLE, index, TEST, SIZE)
    workflow = tiny_workflow("planner_executor", settings["mas"]["workflow"]["args"])
    return draw(puzzle, sessions[index], workflow.codec(puzzle), acting="executor")
