"""The trainers of a team, one per mode (`config.modes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_mas.trainer.trainer import TeamTrainer


def trainers() -> list[type[TeamTrainer]]:
    from verl_mas.trainer.modes.asynchronous import ColocatedAsyncTrainer, SeparateAsyncTrainer
    from verl_mas.trainer.modes.sync import MasTrainer

    return [MasTrainer, ColocatedAsyncTrainer, SeparateAsyncTrainer]
