"""verl's own validation of a configuration. What it accepted is remembered, because importing verl takes seconds."""

from __future__ import annotations

import contextlib
import io
from importlib.metadata import version

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.verl.remembered import accepted_before, remember
from verl_mas.config.merge import SECTION
from verl_mas.util import installed_version
from verl_mas.verl_.contract import VERSION

REFUSED = (ValueError, AssertionError, TypeError, NotImplementedError, OmegaConfBaseException, HydraException)
# What the validation of verl's VERSION reads; of another version it is asked again whatever changes beside `mas`.
READ = (
    *(SECTION, "algorithm", "critic", "data.train_batch_size", "data.val_batch_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node"),
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
        omega_conf_to_dataclass(view[SECTION].rollout)  # verl's servers do so.


def _question(view: DictConfig, engine: str | None) -> object:
    names = READ if version("verl") == VERSION else [str(name) for name in view if name != "mas"]
    values = [OmegaConf.select(view, name) for name in names]
    plain = [OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value for value in values]
    return [plain, engine and installed_version(engine)]
