"""Repeat a letter: a random tiny model, verl's own trainer and its own GRPO."""

from pathlib import Path

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from verl_mas.config.compose import compose
from verl_mas.gym.demos.live import DemoRun
from verl_mas.run_folder.metrics.file import series
from verl_mas.testing import letters
from verl_mas.util.text import sparkline

FOLDER = Path("runs/first_run")
REWARD, HELD_OUT = "critic/score/mean", "val-core/letters/acc/mean@1"


def run(overrides: list[str], console: Console, *, fresh: bool = False) -> None:
    """Train from random weights, so `fresh` has no effect."""
    console.print("Repeat a letter: a random model of 0.1M parameters, verl's trainer and its own GRPO.")
    arguments = ["+platform=cpu", "+recipe=first_run/laptop", *overrides]
    compose(arguments)  # invalid overrides raise an error here, before a model is made
    disable_progress_bar()
    letters.prepare(FOLDER)
    training = DemoRun(arguments, FOLDER, steps_in_all=50)
    steps = training.watch(REWARD, console)
    (_, rewards), (_, held_out) = series(steps, REWARD), series(steps, HELD_OUT)
    console.print(f"\nreward {sparkline(rewards)}  held out: {held_out[0]:.2f} before, {held_out[-1]:.2f} after")
    files = [("metrics", training.metrics), ("log", training.log)]
    for what, file in files:
        console.print(f"{what:8} {file}")
