"""Options in `rollout.engine_kwargs` that contradict the settings of verl, or that no engine reads."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from verl_mas.config.merge import SECTION
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning


def check_engine_options(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    """`view` is the configuration of one policy."""
    rollout = view[SECTION].rollout
    options = rollout.engine_kwargs.get(rollout.name) or {}
    for option, setting in facts_of(str(rollout.name)).replaces.items():
        value = options.get(option)
        if value is not None and value != rollout.get(setting):
            yield ConfigError(
                f"policy {policy}: rollout.engine_kwargs.{rollout.name}.{option}={value} with "
                f"rollout.{setting}={rollout.get(setting)}",
                rule="the engine would take the first, and verl, the checks and the other engines go by the second",
                fix=f"set {SECTION}.rollout.{setting}={value}, and remove the option",
            )


def check_unread_options(run: Run) -> Iterator[ConfigWarning]:
    """Options of one engine while the run has another. With options for both, the command is meant for either."""
    used = {str(run.view(name).value("rollout.name")) for name in local_policies(run.mas)}
    given = {str(name) for name, options in run.config[SECTION].rollout.engine_kwargs.items() if options}
    if used and given and not given & used:
        yield ConfigWarning(
            f"{SECTION}.rollout.engine_kwargs.{', '.join(sorted(given))} with rollout.name={', '.join(sorted(used))}",
            reason="an engine reads its own options only",
            fix=f"set {SECTION}.rollout.engine_kwargs.{min(used)}, or {SECTION}.rollout.name",
        )
