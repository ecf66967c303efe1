"""Writes to the file $MOMENTS when a run begins a rollout, an update or a save. verl loads it in every process."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook, wrap_function_wrapper

Wrapped = Callable[..., object]


def _trainer(module: ModuleType) -> None:
    for method, moment in (("_step_once", "rollout"), ("_update", "update"), ("_save_checkpoint", "save")):
        wrap_function_wrapper(module, f"TeamTrainer.{method}", _writes(moment))


def _writes(moment: str) -> Callable[..., object]:
    def wrapper(wrapped: Wrapped, trainer: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with Path(os.environ["MOMENTS"]).open("a") as file:
            file.write(f"{moment} {trainer.global_steps}\n")
        return wrapped(*args, **kwargs)

    return wrapper


register_post_import_hook(_trainer, "verl_mas.trainer.trainer")
