"""Everything that is checked before Ray starts, in one call."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.answers import check_answers, check_rewarded
from verl_mas.checks.doctor import diagnose, problems
from verl_mas.checks.environment import check_environment, environment_of_workers
from verl_mas.checks.images import seen, tokens_of
from verl_mas.checks.lengths import check_stated_prompts
from verl_mas.checks.machine import (
    check_addresses,
    check_cluster,
    check_device,
    check_packages,
    check_platform,
    check_plugin,
    check_resources,
    check_versions,
)
from verl_mas.checks.policies import check_validated
from verl_mas.checks.prompts import check_prompts
from verl_mas.checks.report import CheckReport, summary
from verl_mas.checks.run_folder import check_checkpoint, check_logger
from verl_mas.checks.team import check_assignment, check_config
from verl_mas.checks.tools import ConfiguredTools, check_tool_prompts, configured_tools
from verl_mas.checks.trainer import check_mode, check_own_estimator, is_team
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.files import check_data, check_scored
from verl_mas.checks.verl.functions import check_functions
from verl_mas.checks.verl.model_folder import ChatTemplate
from verl_mas.checks.verl.model_folder import settings as model_settings
from verl_mas.checks.verl.place import check_folders, no_connection, run_on, target, unless_elsewhere
from verl_mas.checks.verl.refusals import Problem, Refusals, raised_by
from verl_mas.checks.verl.rows import sound_rows
from verl_mas.checks.verl.served import check_served
from verl_mas.checks.verl.settings import check_keys, check_sections, check_values
from verl_mas.checks.verl.training_engine import check_lengths
from verl_mas.config.cluster import adapt
from verl_mas.config.compose import compose
from verl_mas.config.merge import SECTION, finalize, materialize_interpolations
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run, load
from verl_mas.errors import ConfigError, ConfigWarning, MasError, raise_all
from verl_mas.planning.hardware import Hardware, has_gpu
from verl_mas.planning.known_models import KNOWN, known
from verl_mas.planning.load import Policy, read_policy
from verl_mas.planning.model import size_of
from verl_mas.planning.path import settle_attention, training_path
from verl_mas.planning.plan import RunPlan, make_plan, part_of
from verl_mas.planning.step import Assumed, Sample, rows_of, training_line, usual_step
from verl_mas.platform import DEVICE as CPU
from verl_mas.util import installed_version
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.tools import Tool

# Whether a run fits on the machines of `--gpus`, by the formulas of `verl_mas.planning`.


class UnknownSize(ConfigError):
    """Of a model whose architecture is not known here."""


def plan_of(run: Run, hardware: Hardware, assumed: Assumed | None = None) -> RunPlan:
    """Of a run with or without a team. Raises ConfigError where a model's size is unknown."""
    # Rows are counted by policy.
    raise_all(check_assignment(run.mas, agents_of(run.mas)))
    served = {name: _served(run, name) for name in local_policies(run.mas)}
    return make_plan(run, served, hardware, usual_step(run, assumed or Assumed(), _sample(run)))


def _sample(run: Run) -> Sample:
    """The first training prompts, as the model of the first policy reads them."""
    data, names = run.config.data, local_policies(run.mas)
    first = next((one for one in sound_rows(run.config) if not one.validation), None)
    chat = ChatTemplate.of_model(run.view(names[0]).section("model")) if names else None
    total = first.total if first and isinstance(data.train_files, str) else None
    if first is None or chat is None or not first.sample:
        return Sample(rows=total)
    settings = {**(data.get("apply_chat_template_kwargs") or {})}
    try:
        prompts = [seen(run.config, row) for row in first.sample]
        texts = [chat.render(messages, settings) for messages in prompts]
        of_images = sum(tokens_of(run.view(names[0]), messages) for messages in prompts)
    except (ValueError, LookupError, OSError):  # check_prompts says why.
        return Sample(rows=total)
    tokens = chat.length("".join(texts), 0)
    return Sample((tokens + of_images) / len(texts) if tokens else None, len(texts), total)


def training_lines(run: Run) -> dict[str, str]:
    """By policy that is trained on GPUs: the path of its training, and what that takes where the model is known."""
    if run.config.trainer.device == CPU:
        return {}
    step, found = usual_step(run, Assumed(), _sample(run)), {}
    rows = rows_of(run, step)
    for name in local_policies(run.mas):
        try:
            found[name] = training_line(part_of(run, _served(run, name), rows.get(name, 0.0)), step)
        except UnknownSize:
            found[name] = str(training_path(run.view(name).config))
    return found


def check_capacity(run: Run) -> Iterator[Problem]:
    if (hardware := target()) is None:
        return
    try:
        plan = plan_of(run, hardware)
    except UnknownSize as error:
        # The run itself does not need the plan.
        yield ConfigWarning(error.value, reason=f"memory was not checked: {error.rule}", fix=error.fix)
        return
    yield from plan.errors
    yield from plan.warnings


def _served(run: Run, name: str) -> Policy:
    model = run.view(name).section("model")
    fields, source = model_settings(model), f"config.json of {model.get('hf_config_path') or model.path}"
    if not fields:
        fields, source = known(str(model.path)) or {}, "a table in verl-mas, as no config.json is here"
    if not fields:
        raise UnknownSize(
            f"policy {name}: the size of model.path={model.path} is not known",
            rule="the plan reads the model's config.json, in a folder or in the cache of the hub; without it, it knows "
            f"{', '.join(KNOWN)}",
            fix=f"put config.json into a folder, and set {SECTION}.model.hf_config_path to it",
        )
    if own := OmegaConf.select(model, "override_config.max_position_embeddings"):
        fields = {**fields, "max_position_embeddings": own}
    try:
        size = size_of(fields)
    except Exception as error:  # models raise any in their constructors
        # For a type that it does not know, transformers lists all others.
        value = f"policy {name}: {source}: {str(error).partition('. Should contain')[0]}"
        rule = f"the plan is made with the model that transformers {installed_version('transformers')} builds from it"
        fix = "set model.path to a model that it has, or install a version that has this one and that verl allows"
        raise UnknownSize(value, rule=rule, fix=fix) from error
    return replace(read_policy(run, name, size), path=str(model.path), source=source)


logger = logging.getLogger(__name__)


def examine_command(arguments: Iterable[str], hardware: Hardware | None = None) -> CheckReport:
    """What `python -m verl.trainer.main_ppo` would be refused or warned of with these arguments, on this machine or on
    another one."""
    refusals = Refusals()
    with run_on(hardware):
        config = refusals.result(lambda: compose(arguments))
        if config is None:
            return CheckReport(errors=refusals.errors)
        refusals.result(lambda: _complete(config))
        report = examine(config)
    # What prevents the completion is among the errors of the checks; if they pass, it is an error itself.
    return report if report.errors or not refusals.errors else replace(report, errors=refusals.errors, summary=None)


def plan_command(
    arguments: Iterable[str], hardware: Hardware, assumed: Assumed | None = None
) -> tuple[RunPlan | None, CheckReport]:
    """What the run takes of the machines; data files and model folders need not be here."""
    refusals, plan = Refusals(), None
    with run_on(hardware):
        config = refusals.result(lambda: compose(arguments))
        if config is not None and refusals.of(check_sections(config)) and refusals.of(check_device(config)):
            refusals.result(lambda: _complete(config))
            refusals.of(combinations("assumed", config, assumed=assumed))
            run = _planned(config, refusals)
            plan = refusals.result(lambda: plan_of(run, hardware, assumed)) if run else None
    refusals.of([*plan.errors, *plan.warnings] if plan else [])
    return plan, CheckReport(refusals.errors, refusals.warnings)


def _planned(config: DictConfig, refusals: Refusals) -> Run | None:
    if not refusals.result(lambda: is_team(config)):
        return Run(config, load(None)) if refusals.of(check_values(config)) else None
    run, _ = check_config(config, refusals)
    refusals.of(check_stated_prompts(run) if run and not refusals.errors else ())
    return run


def examine(config: DictConfig) -> CheckReport:
    """Every check of a composed configuration, of a team or of verl's own trainers; raises nothing."""
    refusals = Refusals()
    refusals.of(check_environment(config), check_platform())  # The driver's own
    with environment_of_workers(config):
        return _examine(config, refusals)


def _examine(config: DictConfig, refusals: Refusals) -> CheckReport:
    machine = refusals.result(lambda: list(diagnose(thorough=False))) or []
    refusals.of(check_plugin(), check_environment(config), problems(machine))
    if not refusals.of(check_versions()):
        # The other checks read settings and sources of versions that they do not know.
        return CheckReport(refusals.errors, refusals.warnings, machine)
    refusals.of(check_platform(OmegaConf.select(config, "trainer.device")))
    run = Run(config, load(None))
    # The other checks read every section.
    if refusals.of(check_sections(config)):
        refusals.of(check_keys(config), check_cluster(config))
        if not refusals.of(check_device(config)):
            return CheckReport(refusals.errors, refusals.warnings, machine)
        if refusals.result(lambda: is_team(config)):
            run = _examine_team(config, refusals) or run
        else:
            _examine_run(run, refusals)
    # A team whose pools are sound fits or does not, whatever else is wrong.
    if not refusals.errors or all(spec.serving != "auto" for spec in run.mas.pools.values()):
        refusals.of(check_capacity(run))
    contents = refusals.result(lambda: summary(run, training_lines(run))) if not refusals.errors else None
    return CheckReport(refusals.errors, refusals.warnings, machine, contents)


def _examine_run(run: Run, refusals: Refusals) -> None:
    config = run.config
    refusals.of(check_mode(config), check_own_estimator(config))
    if not refusals.of(check_values(config)):
        return  # Other checks calculate with these values.
    refusals.of(check_served(config), check_resources(run), check_data(config, scored=True))
    refusals.of(check_lengths(config, "main", trained=True), check_validated(run.copy()))
    refusals.of(check_functions(config), check_packages(config), check_folders(config), combinations("rewards", config))
    refusals.of(check_checkpoint(run), check_scored(config))
    if not refusals.errors:
        refusals.of(check_prompts(run), check_rewarded(run))


def _examine_team(config: DictConfig, refusals: Refusals) -> Run | None:
    run, usable = check_config(config, refusals)
    tools: Mapping[str, Tool] = {}
    if run is not None:
        refusals.of(
            check_policies(run),
            check_functions(config),
            check_packages(config),
            check_folders(config),
            combinations("rewards", config),
            check_data(config, scored=False),
        )
        # What cannot be loaded is not loaded again: it may take its whole time limit.
        if usable:
            refusals.of(check_workflow_ready(run))
            configured = refusals.result(partial(configured_tools, run)) or ConfiguredTools()
            refusals.of(configured.problems, check_tool_prompts(run, configured.tools))
            tools = configured.tools
            refusals.of(check_checkpoint(run), check_logger(config))
            refusals.of(check_addresses(run, vars(resolve(run.mas.workflow))))
            refusals.of(check_answers(run, resolve(run.mas.workflow)))
        refusals.of(check_finalized(run))
        if not refusals.errors:
            refusals.of(check_prompts(run, tools))
    return run


def require_accepted(config: DictConfig) -> None:
    """End the driver with every error of a configuration; log its warnings if there is none."""
    with exit_on_error():
        report = examine(config)
    if not report.accepted:
        raise SystemExit(f"verl-mas checked this run before Ray starts\n{report.problems}")
    for warning in report.warnings:
        logger.warning("%s", warning)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Hydra turns an exception in a callback into a warning; only an exit stops the run."""
    try:
        yield
    except MasError as error:
        raise SystemExit(f"verl-mas: {error}") from error
    except (Exception, SystemExit) as error:
        # What the check would have found is unknown, so the run ends.
        trace = "".join(traceback.format_exception(error))
        raise SystemExit(f"{trace}verl-mas: a check before the run raised {type(error).__name__}: {error}") from error


def finalize_team(config: DictConfig) -> None:
    """Complete a composed configuration for `examine`, or raise every error in it."""
    try:
        _complete(config)
    except Exception:
        # The checks report the same error, and all others with it.
        raise_all(examine(config).errors)
        raise


def _complete(config: DictConfig) -> None:
    adapt(config)
    if is_team(config):
        # What is installed here tells nothing of a machine with GPUs where this one has none.
        if target() is None or has_gpu():
            settle_attention(config)
        finalize(config, load(config.get("mas")))


def check_policies(run: Run) -> Iterator[Problem]:
    """The model and the engine of every policy that is served here, and whether the endpoint of another answers."""
    for name, spec in run.mas.policies.items():
        if spec.remote is None:
            yield from check_served(run.view(name).config)
        elif why := no_connection(spec.remote.base_url):
            value, fix = f"mas.policies.{name}.remote.base_url: {why}", "start the endpoint, or correct base_url"
            error = ConfigError(value, rule="the endpoint of a remote policy runs before the run starts", fix=fix)
            yield unless_elsewhere(run.config, error)


def check_workflow_ready(run: Run) -> Iterator[Problem]:
    """What the workflow itself checks. With `--gpus`, a server may be one that only the machines of the run reach."""
    for error in raised_by(lambda: resolve(run.mas.workflow).check(), seconds=run.mas.workflow.check_timeout_s):
        yield unless_elsewhere(run.config, error) if target() else error


def check_finalized(run: Run) -> Iterator[Problem]:
    """In a multirun no hook gets the configuration of the job, so the user must write what `finalize` adds."""
    overriding = any(spec.overrides for spec in run.mas.policies.values())
    if overriding and (missing := materialize_interpolations(run.copy(), run.mas)):
        value = "in a multirun, interpolated settings do not follow a policy's overrides"
        rule = "verl resolves interpolations before it builds the trainer"
        yield ConfigError(value, rule=rule, fix="add " + " ".join(f"+{item}" for item in missing))
