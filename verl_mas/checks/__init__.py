"""What is refused before Ray starts. Importing this package loads neither torch nor verl."""

from __future__ import annotations

from types import ModuleType


def register_trainer(trainer_base: ModuleType | None = None) -> None:
    """Tell verl of trainer_mode=mas, when verl imports its trainers, which is when one is asked for.

    What is registered checks the configuration again: a run that does not come through Hydra has no callback.
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
