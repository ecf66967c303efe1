"""verl's own checks of its configuration."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from importlib.util import find_spec

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.examined import ExaminedRun
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import pool_shape
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError

REFUSED = (ValueError, AssertionError, TypeError, NotImplementedError, OmegaConfBaseException, HydraException)


def check_validated(run: ExaminedRun) -> Iterator[ConfigError]:
    """What verl itself refuses, of each policy."""
    for name, spec in run.mas.policies.items():
        if spec.remote:
            continue
        view, shape = run.view(name).copy(), pool_shape(run, spec.pool)
        view.trainer.nnodes, view.trainer.n_gpus_per_node = len(shape), shape[0]
        if run.mode and run.config[SECTION].actor.use_dynamic_bsz:
            # A team's rows are padded to what its workers need. That GPUs divide the sessions is verl's for the base.
            view.trainer.nnodes = view.trainer.n_gpus_per_node = 1
        package = facts_of(view[SECTION].rollout.name).package
        if package and find_spec(package) is None:
            # verl asks the engine for the LoRA ranks that it takes; that it is not installed is said elsewhere.
            OmegaConf.update(view, f"{SECTION}.model.lora.merge", True, force_add=True)
        if why := _refused(view):
            own = f", or mas.policies.{name}.overrides" if run.mode else ""
            whose = f"policy {name}: " if run.mode else ""
            yield ConfigError(f"{whose}{why}", rule="verl accepts the configuration", fix=f"change {SECTION}{own}")


def _refused(view: DictConfig) -> str:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            # As verl's `need_reference_policy`, whose module imports datasets: a third of a second.
            reference = bool(view.algorithm.get("use_kl_in_reward") or view[SECTION].actor.use_kl_loss)
            validate_config(view, use_reference_policy=reference, use_critic=False)
            # verl's servers and trainer do so.
            for section in [view[SECTION].rollout, *([view.distillation] if view.distillation.enabled else [])]:
                omega_conf_to_dataclass(section)
    except REFUSED as error:
        return str(error)
    return ""
