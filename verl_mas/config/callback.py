"""Checks a team in the driver, after Hydra composed the configuration and before verl starts Ray."""

from __future__ import annotations

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from verl_mas import preflight
from verl_mas.config.load import load
from verl_mas.config.merge import policy_view, settle, spell_out_followers
from verl_mas.config.rules import TRAINER_MODE, validate
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError


class TeamCheck(Callback):
    """Every `mas/<team>.yaml` names this class in `hydra.callbacks`."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        # The only hook whose configuration is the one that the job gets.
        with preflight.or_exit():
            if _is_team(config):
                settle(config, load(config.mas))

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        with preflight.or_exit():
            if _is_team(config):
                preflight.check_plugin()
                _nothing_left_to_follow(config)
                checked(config)


def checked(config: DictConfig) -> MasConfig:
    """The team, when everything that can be known before Ray starts is well."""
    # These packages read this package's schema.
    from verl_mas.trainer.checkpoint import check_checkpoint
    from verl_mas.workflow.base import resolve

    team = validate(config)
    for name, spec in team.policies.items():
        if spec.remote is None:
            preflight.check_served(policy_view(config, name, spec))
    resolve(team.workflow).check()
    check_checkpoint(config, team)
    return team


def _is_team(config: DictConfig) -> bool:
    return config.trainer.v1.trainer_mode == TRAINER_MODE


def _nothing_left_to_follow(config: DictConfig) -> None:
    """In a multirun the job's configuration is out of reach, so what follows must be written out by hand."""
    missing = spell_out_followers(config.copy(), load(config.mas))
    if missing:
        raise ConfigError(
            "in a multirun, interpolated settings do not follow a policy's overrides",
            rule="verl resolves interpolations before it builds the trainer",
            way_out="add " + " ".join(f"+{item}" for item in missing),
        )
