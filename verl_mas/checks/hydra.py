"""Runs the checks in the driver, after Hydra composed the configuration and before verl starts Ray."""

from __future__ import annotations

import os
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from verl_mas import platform
from verl_mas.checks.machine import check_plugin
from verl_mas.checks.run import check_run, check_team, exit_on_error
from verl_mas.checks.trainer import TRAINER_MODE
from verl_mas.config.load import load
from verl_mas.config.merge import finalize, materialize_interpolations
from verl_mas.errors import ConfigError


class UseCpu(Callback):
    """Makes `+platform=cpu` hold in the driver too, where verl chose its platform before it read the config."""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        from verl.plugin.platform import get_platform, set_platform

        from verl_mas.platform.cpu import PlatformCPU

        os.environ["VERL_PLATFORM"] = platform.DEVICE
        if not isinstance(get_platform(), PlatformCPU):
            set_platform(PlatformCPU())
        with exit_on_error():
            check_run(config)


class TeamCheck(Callback):
    """Every `mas/<team>.yaml` names this class in `hydra.callbacks`."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        # The only hook whose configuration is the one that the job gets.
        with exit_on_error():
            if _is_team(config):
                finalize(config, load(config.mas))

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        with exit_on_error():
            if _is_team(config):
                check_plugin()
                _nothing_left_to_follow(config)
                check_team(config)


def _is_team(config: DictConfig) -> bool:
    return config.trainer.v1.trainer_mode == TRAINER_MODE


def _nothing_left_to_follow(config: DictConfig) -> None:
    """In a multirun the job's configuration is out of reach, so what follows must be written out by hand."""
    missing = materialize_interpolations(config.copy(), load(config.mas))
    if missing:
        raise ConfigError(
            "in a multirun, interpolated settings do not follow a policy's overrides",
            rule="verl resolves interpolations before it builds the trainer",
            fix="add " + " ".join(f"+{item}" for item in missing),
        )
