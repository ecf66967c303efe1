"""Make two runs that start together take turns with their steps.

Every process of a run imports this module (VERL_USE_EXTERNAL_MODULES).

The starts overlap, but each step has the machine to itself. Because the steps alternate, a change in the machine's
speed affects both runs.
"""

from __future__ import annotations

import os
import time
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

FOLDER = "GPU_PROOF_TURNS"
RUNS = 2
# Seconds to wait for the other run's start. After that, this run continues alone.
PATIENCE = 600.0
# Name of the timer of the seconds that a step waited for its turn: `timing_s/turn`.
TURN = "turn"


def take_turns(module: ModuleType) -> None:
    """Patch verl's trainer, the base class of a team's trainer."""
    trainer, folder = module.PPOTrainer, Path(os.environ[FOLDER])
    begin, end = trainer.on_step_begin, trainer._consume_sync_metrics  # noqa: SLF001  verl's last call of a step
    lock = (folder / "lock").open("w")

    def on_step_begin(self: Any) -> None:
        with module.marked_timer(TURN, self.timing_raw):
            arrive(folder)
            flock(lock, LOCK_EX)
        begin(self)

    def consume_sync_metrics(self: Any) -> dict[str, float]:
        flock(lock, LOCK_UN)
        metrics: dict[str, float] = end(self)
        return metrics

    trainer.on_step_begin, trainer._consume_sync_metrics = on_step_begin, consume_sync_metrics  # noqa: SLF001


def arrive(folder: Path, patience: float = PATIENCE) -> None:
    """Wait until all runs are ready for their first step."""
    (folder / f"{os.getpid()}.run").touch()
    late = time.monotonic() + patience
    while len([*folder.glob("*.run")]) < RUNS and time.monotonic() < late:
        time.sleep(0.05)


if FOLDER in os.environ:
    register_post_import_hook(take_turns, "verl.trainer.ppo.v1.trainer_base")
