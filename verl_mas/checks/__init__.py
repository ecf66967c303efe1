"""What is refused before Ray starts. Importing this package loads neither torch nor verl."""

from __future__ import annotations

from types import ModuleType


def register_trainer(trainer_base: ModuleType | None = None) -> None:
    """Register trainer_mode=mas with verl, when verl imports its trainers.

    The registered class checks the configuration again: a run without Hydra has no callback that does.
    """
    from omegaconf import DictConfig
    from verl.trainer.ppo.v1.trainer_base import register_trainer as register

    from verl_mas.checks.team import validate
    from verl_mas.trainer.trainer import MasTrainer

    @register("mas")
    class CheckedTrainer(MasTrainer):
        def __init__(self, config: DictConfig):
            validate(config)
            super().__init__(config)
