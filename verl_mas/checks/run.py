"""Everything that is refused before Ray starts, run as one."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_mas.checks.checkpoint import check_checkpoint
from verl_mas.checks.machine import check_platform, check_plugin, check_resources, check_versions
from verl_mas.checks.served import check_served
from verl_mas.checks.team import validate
from verl_mas.config.merge import policy_view
from verl_mas.config.schema import MasConfig
from verl_mas.errors import MasError
from verl_mas.workflow.base import resolve


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Hydra turns an exception in a callback into a warning; only an exit stops the run."""
    try:
        yield
    except MasError as error:
        raise SystemExit(f"verl-mas: {error}") from error
    except Exception as error:
        # A user's workflow or a check of ours is broken: what it would have refused is not known, so the run ends.
        trace = "".join(traceback.format_exception(error))
        raise SystemExit(f"{trace}verl-mas: a check before the run raised {type(error).__name__}: {error}") from error


def check_run(config: DictConfig) -> None:
    """What every run needs, team or not."""
    check_plugin()
    check_versions()
    check_platform()
    check_served(config)
    check_resources(config)


def check_team(config: DictConfig) -> MasConfig:
    """The team, when everything that can be known before Ray starts is well."""
    mas = validate(config)
    for name, spec in mas.policies.items():
        if spec.remote is None:
            check_served(policy_view(config, name, spec))
    resolve(mas.workflow).check()
    check_checkpoint(config, mas)
    return mas
