"""Hydra callbacks that run the checks in the driver, before verl starts Ray."""

import os

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from verl_mas.checks.machine import check_plugin
from verl_mas.checks.run import exit_on_error, finalize_team, require_accepted
from verl_mas.config.cluster import adapt, send_command
from verl_mas.config.modes import mode_of
from verl_mas.engines import platform
from verl_mas.engines.platform.ray_workers import fork_workers
from verl_mas.errors import raise_all


class UseCpu(Callback):
    """Applies `+platform=cpu` in the driver, too, where verl selects its platform before it reads the configuration."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        # Only this hook gets the same configuration object as the job, so only here can the job's settings be changed.
        with exit_on_error():
            adapt(config)
        fork_workers(config)

    def on_job_start(self, config: DictConfig, **kwargs: object) -> None:
        from verl.plugin.platform import get_platform, set_platform

        from verl_mas.engines.platform.cpu import PlatformCPU

        os.environ["VERL_PLATFORM"] = platform.DEVICE
        with exit_on_error():
            # Without the plugin, verl would not know the platform that is set next.
            raise_all(check_plugin())
            if not isinstance(get_platform(), PlatformCPU):
                set_platform(PlatformCPU())
            team = mode_of(config)
        # With a team, TeamCheck reports all errors in one message.
        if not team:
            require_accepted(config)


class TeamCheck(Callback):
    """Completes and checks the configuration of a team. Every `mas/<team>.yaml` names it in `hydra.callbacks`."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        with exit_on_error():
            finalize_team(config)
        send_command(config)

    def on_job_start(self, config: DictConfig, **kwargs: object) -> None:
        require_accepted(config)
