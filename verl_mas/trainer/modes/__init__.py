"""The trainers of a team, one per mode (`config.modes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_mas.trainer.trainer import TeamTrainer


def trainers() -> list[type[TeamTrainer]]:
    from verl_mas.trainer.modes.colocated import ColocatedAsyncTrainer
    from verl_mas.trainer.modes.sync import MasTrainer

    return [MasTrainer, ColocatedAsyncTrainer]
