"""What is refused before Ray starts. Importing this package loads neither torch nor verl."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_mas.trainer.trainer import TeamTrainer


def register_trainer(trainer_base: ModuleType | None = None) -> None:
    """Register a team's modes with verl, when verl imports its trainers.

    A registered class checks the configuration again: a run without Hydra has no callback that does.
    """
    from omegaconf import DictConfig
    from verl.trainer.ppo.v1.trainer_base import register_trainer as register

    from verl_mas.checks.team import validate
    from verl_mas.trainer.modes.asynchronous import ColocatedAsyncTrainer, SeparateAsyncTrainer
    from verl_mas.trainer.modes.sync import MasTrainer

    def checked(trainer: type[TeamTrainer]) -> type[TeamTrainer]:
        class CheckedTrainer(trainer):  # type: ignore[valid-type,misc]
            def __init__(self, config: DictConfig):
                validate(config)
                super().__init__(config)

        return CheckedTrainer

    for trainer in (MasTrainer, ColocatedAsyncTrainer, SeparateAsyncTrainer):
        register(trainer.mode.name)(checked(trainer))
