"""Checks of a policy: its endpoint, overrides and batch sizes, and verl's own checks of its configuration."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.adapters import check_adapter, check_base, check_lora
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.refusals import Problem
from verl_mas.checks.verl.remembered import accepted_before, remember
from verl_mas.checks.verl.settings import check_value, unknown
from verl_mas.checks.verl.training_engine import check_heads, check_lengths, check_sharding, check_training_engine
from verl_mas.checks.verl.values import VALUES
from verl_mas.config.adapters import adapters
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import local_policies, pool_shape
from verl_mas.config.run import CORRECTION, Run
from verl_mas.config.verl_settings import SettingDifference, differences, section_at, settings_of
from verl_mas.endpoints.endpoint import check_endpoint
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.util import installed_version
from verl_mas.verl_.contract import VERSION


def check_override_keys(run: Run) -> Iterator[ConfigError]:
    """Keys in the overrides of a policy that verl does not read."""
    yield from (unknown(difference, settings_of(run.config)) for difference in _overrides(run) if not difference.known)


def check_override_values(run: Run) -> Iterator[Problem]:
    """Values in the overrides of a policy that verl does not take or read."""
    for difference in _overrides(run):
        if difference.known:
            yield from check_value(difference)


def _overrides(run: Run) -> Iterator[SettingDifference]:
    for name, spec in run.mas.policies.items():
        for key, own, path in (
            ("overrides", spec.overrides, SECTION),
            ("rollout_correction", spec.rollout_correction, CORRECTION),
        ):
            yield from differences(own, section_at(path, settings_of(run.config)), f"mas.policies.{name}.{key}", VALUES)


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


def check_specs(run: Run) -> Iterator[Problem]:
    """The endpoint of a section of `mas.policies`, and what it has that cannot be together."""
    for name, spec in run.mas.policies.items():
        if spec.remote:
            yield from check_endpoint(spec.remote.base_url, spec.remote.api_key_env, f"mas.policies.{name}.remote.")
        yield from combinations("policies", run.config, own=spec, policy=name, adapters=adapters(run.mas, name))


def check_views(run: Run) -> Iterator[Problem]:
    """The configuration of each policy: its lengths, its training, and verl's own checks."""
    for name, spec in run.mas.policies.items():
        if spec.remote:
            continue
        view, shape = run.view(name).copy(), pool_shape(run, spec.pool)
        view.trainer.nnodes, view.trainer.n_gpus_per_node = len(shape), shape[0]
        on_base = adapters(run.mas, name)
        if not spec.adapter_of:
            yield from check_heads(view, name)
            yield from check_lengths(view, name, trained=spec.is_trained or bool(on_base))
        if spec.is_trained:
            yield from check_adapter(view, name) if spec.adapter_of else check_lora(view, name)
            strategy = list(combinations("strategy", view, f"policy {name}: "))
            # With another engine its settings are in another section.
            yield from strategy or check_training_engine(view, name)
            yield from check_sharding(view, name)
        elif on_base:
            yield from check_base(view, name, on_base)
        elif not spec.snapshot:
            yield from combinations("frozen", view, f"policy {name}: ")
        if run.config[SECTION].actor.use_dynamic_bsz:
            # A team's rows are padded to what its workers need. That GPUs divide the sessions is verl's for the base.
            view.trainer.nnodes = view.trainer.n_gpus_per_node = 1
        yield from check_validated(view, f"policy {name}: ", f"{SECTION}, or mas.policies.{name}.overrides")


def check_validated(view: DictConfig, whose: str = "", changed: str = "the setting") -> Iterator[ConfigError]:
    """What verl itself refuses. `view` is a copy."""
    package = facts_of(view[SECTION].rollout.name).package
    if package and find_spec(package) is None:
        # verl asks the engine for the LoRA ranks that it takes; `check_installed` reports that it is not there.
        OmegaConf.update(view, f"{SECTION}.model.lora.merge", True, force_add=True)
    if why := refused_by_verl(view, package):
        yield ConfigError(f"{whose}{why}", rule="verl accepts the configuration", fix=f"change {changed}")


# verl's own validation. What it accepted is remembered, because importing verl takes seconds.


REFUSED = (ValueError, AssertionError, TypeError, NotImplementedError, OmegaConfBaseException, HydraException)
# What the validation of verl's VERSION reads; of another version it is asked again whatever changes beside `mas`.
READ = (
    *(SECTION, "algorithm", "critic", "distillation"),
    *("data.train_batch_size", "data.val_batch_size", "trainer.nnodes", "trainer.n_gpus_per_node"),
)


def refused_by_verl(view: DictConfig, engine: str | None) -> str:
    """Why verl does not accept a policy's configuration; empty if it does. `engine`: the package that verl may ask."""
    try:
        question = _question(view, engine)
        if not accepted_before(question):
            _validate(view)
            remember(question)
    except REFUSED as error:
        return str(error)
    return ""


def _validate(view: DictConfig) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    with contextlib.redirect_stdout(io.StringIO()):
        # As verl's need_reference_policy; `use_kl_in_reward` is refused for a team.
        validate_config(view, use_reference_policy=view[SECTION].actor.use_kl_loss, use_critic=False)
        # verl's servers and trainer do so.
        for section in [view[SECTION].rollout, *([view.distillation] if view.distillation.enabled else [])]:
            omega_conf_to_dataclass(section)


def _question(view: DictConfig, engine: str | None) -> object:
    names = READ if version("verl") == VERSION else [str(name) for name in view if name not in ("mas", "hydra")]
    values = [OmegaConf.select(view, name) for name in names]
    plain = [OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value for value in values]
    return [plain, engine and installed_version(engine)]
