"""Everything that is refused before Ray starts, in one call."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf import DictConfig

from verl_mas.checks.checkpoint import check_checkpoint
from verl_mas.checks.machine import check_platform, check_plugin, check_resources, check_versions
from verl_mas.checks.refusals import Refusals, raised_by
from verl_mas.checks.served import check_served
from verl_mas.checks.team import check_config
from verl_mas.checks.trainer import check_counts
from verl_mas.config.load import load
from verl_mas.config.merge import finalize, materialize_interpolations, policy_view
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, ConfigWarning, MasError
from verl_mas.workflow.base import resolve

logger = logging.getLogger(__name__)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Hydra turns an exception in a callback into a warning; only an exit stops the run."""
    try:
        yield
    except MasError as error:
        raise SystemExit(f"verl-mas: {error}") from error
    except Exception as error:
        # What the check would have found is unknown, so the run ends.
        trace = "".join(traceback.format_exception(error))
        raise SystemExit(f"{trace}verl-mas: a check before the run raised {type(error).__name__}: {error}") from error


def check_run(config: DictConfig) -> None:
    """Checks of a run without a team."""
    found = Refusals()
    found.of(check_plugin(), check_versions(), check_platform(), check_served(config))
    if found.of(check_counts(config)):
        found.of(check_resources(config))
    found.raise_all()


def check_team(config: DictConfig) -> MasConfig:
    """The team, if no check before Ray starts finds an error; warnings are logged."""
    mas, warnings = examine_team(config)
    for warning in warnings:
        logger.warning("verl-mas: %s", warning)
    return mas


def examine_team(config: DictConfig) -> tuple[MasConfig, list[ConfigWarning]]:
    """The team and all warnings, if no check before Ray starts finds an error."""
    found = Refusals()
    found.of(check_plugin(), check_versions(), check_platform())
    mas = check_config(config, found)
    found.of(check_policies(config, mas), raised_by(lambda: resolve(mas.workflow).check()))
    found.of(check_checkpoint(config, mas), check_finalized(config, mas))
    found.raise_all()
    return mas, found.warnings


def finalize_team(config: DictConfig) -> None:
    """Complete a composed configuration for `check_team`, or raise every error in it."""
    try:
        finalize(config, load(config.get("mas")))
    except Exception:
        # The checks report the same error, and all others with it.
        check_team(config)
        raise


def check_policies(config: DictConfig, mas: MasConfig) -> Iterator[ConfigError]:
    """The model and the engine of every policy that is served here."""
    for name, spec in mas.policies.items():
        if spec.remote is None:
            yield from check_served(policy_view(config, name, spec))


def check_finalized(config: DictConfig, mas: MasConfig) -> Iterator[ConfigError]:
    """In a multirun no hook gets the configuration of the job, so the user must write what `finalize` adds."""
    missing = materialize_interpolations(config.copy(), mas)
    if missing:
        yield ConfigError(
            "in a multirun, interpolated settings do not follow a policy's overrides",
            rule="verl resolves interpolations before it builds the trainer",
            fix="add " + " ".join(f"+{item}" for item in missing),
        )
