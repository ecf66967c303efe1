"""Runs the checks in the driver, after Hydra composed the configuration and before verl starts Ray."""

from __future__ import annotations

import os
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from verl_mas import platform
from verl_mas.checks.machine import check_plugin
from verl_mas.checks.run import check_run, check_team, exit_on_error, finalize_team
from verl_mas.checks.trainer import is_team


class UseCpu(Callback):
    """Makes `+platform=cpu` hold in the driver too, where verl chose its platform before it read the config."""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        from verl.plugin.platform import get_platform, set_platform

        from verl_mas.platform.cpu import PlatformCPU

        os.environ["VERL_PLATFORM"] = platform.DEVICE
        with exit_on_error():
            # Without the plugin verl does not know the platform that it is asked for next.
            check_plugin()
            if not isinstance(get_platform(), PlatformCPU):
                set_platform(PlatformCPU())
            # A team's own callback reports everything in one call.
            if not is_team(config):
                check_run(config)


class TeamCheck(Callback):
    """Every `mas/<team>.yaml` names this class in `hydra.callbacks`."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        # The only hook whose configuration is the one that the job gets.
        with exit_on_error():
            if is_team(config):
                finalize_team(config)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        with exit_on_error():
            if is_team(config):
                check_team(config)
