"""Kills the trainer's process after the first policy of a step is saved. verl loads it in every process."""

import os
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook


def _break(module: ModuleType) -> None:
    save = module.PolicyTrainer.save

    def save_or_die(self: Any, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        if self.name == os.environ["DIE_BEFORE"] and folder.endswith(f"global_step_{os.environ['DIE_AT']}"):
            os._exit(17)
        save(self, folder, remote, step, keep)

    module.PolicyTrainer.save = save_or_die


register_post_import_hook(_break, "verl_mas.trainer.policies.policy_trainer")
