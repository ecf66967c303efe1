"""Shown a letter, go on with it: a random tiny model, verl's own trainer and its own GRPO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from verl_mas.demos import curves
from verl_mas.demos.live import Run
from verl_mas.demos.metrics import series

RECIPE = Path("recipes/first_run")
FOLDER = Path("runs/first_run")
REWARD, HELD_OUT = "critic/score/mean", "val-core/letters/acc/mean@1"


def run(overrides: list[str], console: Console, *, fresh: bool = False) -> None:
    """Train from nothing, whether or not it is asked for."""
    console.print("Shown a letter, go on with it: a random model of 0.1M parameters, verl's trainer and its own GRPO.")
    subprocess.run([sys.executable, str(RECIPE / "letters.py"), str(FOLDER)], check=True, capture_output=True)
    training = Run(
        overrides=["--config-dir", "recipes", "+platform=cpu", "+first_run=laptop", *overrides],
        folder=FOLDER,
        steps_in_all=50,
    )
    _report(training, training.watch(REWARD, console), console)


def _report(run: Run, steps, console: Console) -> None:
    picture = FOLDER / "reward.png"
    curves.plot(steps, {"reward": {"training": REWARD, "held out": HELD_OUT}}, picture, "Go on with the letter shown")
    _, rewards = series(steps, REWARD)
    _, held_out = series(steps, HELD_OUT)
    console.print(f"\nreward {curves.sparkline(rewards)}  held out: {held_out[0]:.2f} before, {held_out[-1]:.2f} after")
    for what, file in (("curve", picture), ("metrics", run.metrics), ("log", run.log)):
        console.print(f"{what:8} {file}")
