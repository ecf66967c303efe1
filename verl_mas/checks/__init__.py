"""Errors and warnings before Ray starts. Importing this package loads neither torch nor verl."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from verl_mas.trainer.trainer import TeamTrainer


def register_trainer(trainer_base: ModuleType | None = None) -> None:
    """Register a team's modes with verl, when verl imports its trainers."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_base import register_trainer as register

    from verl_mas.config.modes import MODES

    class CheckedTrainer(PPOTrainer):
        """Constructs the trainer of the mode. Our trainers are imported only when a trainer is constructed, because
        `register_trainer` runs while verl's trainers are being imported. If one of our modules has started this import
        of verl's trainers, our module is still incomplete, and importing our trainers at this point could fail."""

        def __new__(cls, config: DictConfig) -> TeamTrainer:  # type: ignore[misc]
            from verl_mas.checks.run import validate
            from verl_mas.trainer.modes.asynchronous import ColocatedAsyncTrainer, SeparateAsyncTrainer
            from verl_mas.trainer.modes.sync import MasTrainer

            # Check again, because a run without Hydra has no callback that checks.
            validate(config)
            kinds = (MasTrainer, ColocatedAsyncTrainer, SeparateAsyncTrainer)
            return {kind.mode.name: kind for kind in kinds}[config.trainer.v1.trainer_mode](config)

    for name in MODES:
        register(name)(CheckedTrainer)
