"""Whether a run fits on the machines of `--gpus`, by the formulas of `verl_mas.planning`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from verl_mas import platform
from verl_mas.checks.model_folder import local_folder, readable_json
from verl_mas.checks.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.hardware import Hardware
from verl_mas.planning.known_models import known, names
from verl_mas.planning.model import size_of
from verl_mas.planning.plan import Plan, Served, make_plan
from verl_mas.planning.reading import read_policy


class UnknownSize(ConfigError):
    """Of a model whose architecture is not known here."""


def plan_of(run: Run, hardware: Hardware) -> Plan:
    """Of a run with or without a team. Raises ConfigError where a model's size is unknown."""
    for error in check_device(run.config, hardware):
        raise error
    served = {name: _served(run, name) for name in local_policies(run.mas)}
    return make_plan(run, served, hardware)


def check_device(config: DictConfig, hardware: Hardware | None) -> Iterator[ConfigError]:
    if hardware is not None and config.trainer.device == platform.DEVICE:
        yield ConfigError(
            f"--gpus with trainer.device={config.trainer.device}",
            rule="a plan is one of GPUs; a run on the CPU (+platform=cpu) takes main memory only",
            fix="remove +platform=cpu or trainer.device, or --gpus",
        )


def check_capacity(run: Run, hardware: Hardware | None) -> Iterator[Problem]:
    if hardware is None:
        return
    try:
        plan = plan_of(run, hardware)
    except UnknownSize as error:
        # The run itself does not need the plan.
        yield ConfigWarning(error.value, reason=f"memory was not checked: {error.rule}", fix=error.fix)
        return
    yield from plan.errors
    yield from plan.warnings


def _served(run: Run, name: str) -> Served:
    model = run.view(name).section("model")
    fields, source = _fields(model)
    if fields is None:
        raise UnknownSize(
            f"policy {name}: the size of model.path={model.path} is not known",
            rule="the plan reads the model's config.json, in a folder or in the cache of the hub; without it, it knows "
            f"{', '.join(names())}",
            fix=f"put config.json into a folder, and set {SECTION}.model.hf_config_path to it",
        )
    return Served(read_policy(run, name, size_of(fields)), str(model.path), source)


def _fields(model: DictConfig) -> tuple[Mapping[str, object] | None, str]:
    """The model's config.json with verl's changes, and where it is from."""
    for path in (model.get("hf_config_path"), model.path):
        folder = local_folder(path) if isinstance(path, str) and path else None
        found = readable_json(folder / "config.json") if folder else {}
        if "model_type" in found:
            return {**found, **_changes(model)}, f"{folder}/config.json"
    found = known(str(model.path)) or {}
    return ({**found, **_changes(model)} if found else None), "the table of verl-mas, as no config.json is here"


def _changes(model: DictConfig) -> Mapping[str, object]:
    own = OmegaConf.to_container(model.get("override_config") or OmegaConf.create({}), resolve=True)
    return {str(k): v for k, v in own.items() if k == "max_position_embeddings"} if isinstance(own, dict) else {}
