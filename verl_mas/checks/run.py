"""All checks before Ray starts, in one call."""

import logging
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks import adapters, answers, machine, place, run_folder, session
from verl_mas.checks.data import check_data, check_files, sound_rows
from verl_mas.checks.doctor import diagnose, problems
from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.images import seen, tokens_of
from verl_mas.checks.refusals import Problem, Refusals, raised_by
from verl_mas.checks.report import CheckReport, summary
from verl_mas.checks.rules import every_rule
from verl_mas.checks.rules.learning import no_team
from verl_mas.checks.settings import check_keys, check_overrides, check_validated, check_values
from verl_mas.checks.tools import check_tool_prompts, configured_tools
from verl_mas.config.cluster import adapt
from verl_mas.config.compose import compose
from verl_mas.config.merge import SECTION, finalize, materialize_interpolations
from verl_mas.config.modes import KEY, MODES, mode_of
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run, load
from verl_mas.config.schema import MasConfig
from verl_mas.config.settle import settle
from verl_mas.config.user_code import load_user_code
from verl_mas.engines.facts import facts_of
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.engines.serving import resolve_serving
from verl_mas.errors import ConfigError, ConfigWarning, MasError, raise_all
from verl_mas.planning.hardware import Hardware, has_gpu
from verl_mas.planning.load import Policy, read_policy
from verl_mas.planning.model_folder import UnknownSize, chat_of, size_in
from verl_mas.planning.path import settle_attention, training_path
from verl_mas.planning.plan import RunPlan, make_plan
from verl_mas.planning.step import Assumed, Sample, rows_of, training_line, usual_step
from verl_mas.workflow.commit import COMMIT_RULES
from verl_mas.workflow.tools import Tool

logger = logging.getLogger(__name__)


def examine_command(arguments: Iterable[str], hardware: Hardware | None = None) -> CheckReport:
    """Check the command `python -m verl.trainer.main_ppo` with these arguments. `hardware`: the machines of the run, if
    the run is not for this machine."""
    refusals, arguments = Refusals(), list(arguments)
    with place.run_on(hardware, arguments):
        config = refusals.result(lambda: compose(arguments))
        if config is None:
            return CheckReport(errors=refusals.errors)
        lines = refusals.result(lambda: complete(config)) or []
        report = replace(examine(config), settled=lines)
    # If `complete` fails, the checks usually report the cause, so its error is added only if the checks find no error.
    return report if report.errors or not refusals.errors else replace(report, errors=refusals.errors, summary=None)


def plan_command(
    arguments: Iterable[str], hardware: Hardware, assumed: Assumed | None = None
) -> tuple[RunPlan | None, CheckReport]:
    """Plan the memory, disk and time of a run. Data files and model folders need not be on this machine."""
    refusals, plan = Refusals(), None
    with place.run_on(hardware):
        config = refusals.result(lambda: compose(arguments))
        if config is not None and refusals.of(machine.check_device(config)):
            refusals.result(lambda: complete(config))
            run = _run(config, refusals)
            plan = refusals.result(lambda: plan_of(run, hardware, assumed)) if run else None
    refusals.of(plan.errors if plan else [])
    return plan, CheckReport(refusals.errors, plan.warnings if plan else ())


def complete(config: DictConfig) -> list[str]:
    """Complete a composed configuration, so that it is what the job will see. Return one line per setting that was
    translated for a team."""
    adapt(config)
    lines = settle(config)
    if mode_of(config):
        # The attention depends on the installed packages. With `--gpus` on a machine without GPUs, the packages of the
        # run's machines are unknown, so leave the attention unset.
        if place.target() is None or has_gpu():
            settle_attention(config)
        finalize(config, load(config.get("mas")))
    return lines


def examine(config: DictConfig) -> CheckReport:
    """Run every check of a composed configuration, whether it is for a team or for verl's own trainers. Raises
    nothing."""
    refusals = Refusals()
    findings = refusals.result(lambda: list(diagnose(thorough=False))) or []
    refusals.of(machine.check_plugin(), problems(findings), place.check_order(config))
    # The checks below import verl.
    if refusals.of(machine.check_versions()) and refusals.of(machine.check_device(config)):
        refusals.of(check_keys(config), machine.check_cluster(config))
        if run := _run(config, refusals, here=True):
            _examine_run(run, refusals)
        found = refusals.result(lambda: summary(run, training_lines(run))) if run and not refusals.errors else None
        return CheckReport(refusals.errors, refusals.warnings, findings, found)
    return CheckReport(refusals.errors, refusals.warnings, findings)


def _run(config: DictConfig, refusals: Refusals, *, here: bool = False) -> ExaminedRun | None:
    """Make the run and check every rule for it; without `here`, skip the rules about this machine. Return None if an
    error prevents these checks."""
    if config.get("mas") is None and OmegaConf.select(config, KEY) in MODES:
        refusals.of([no_team(OmegaConf.select(config, KEY))])
        return None
    run = refusals.result(lambda: ExaminedRun.of(config) if mode_of(config) else ExaminedRun(config, load(None)))
    # User code comes first, because it may register engines and other names. Rules come last, because they calculate
    # with the values.
    loaded = run and refusals.of(raised_by(load_user_code, run.mas, seconds=run.mas.workflow.check_timeout_s))
    sound = refusals.of(check_values(config))
    if run is None or not refusals.of(check_overrides(run)) or not (loaded and sound):
        return None
    if run.mode and not refusals.of(raised_by(_made, run, seconds=run.mas.workflow.check_timeout_s)):
        return None
    if run.mode:
        run = refusals.result(partial(resolve_serving, run)) or run
    for rule in every_rule().values():
        refusals.of(rule.problems(run) if here or not rule.here else ())
    refusals.of(adapters.check_adapters(run) if run.mode else ())
    return run


def _made(run: ExaminedRun) -> None:
    """Make the workflow and its agents; find the commit rule."""
    assert run.workflow and run.agents
    COMMIT_RULES.find(run.mas.branch.commit, "mas.branch.commit")


def _examine_run(run: ExaminedRun, refusals: Refusals) -> None:
    config, usable = run.config, not refusals.errors
    refusals.of(check_validated(run) if usable else ())
    refusals.of(machine.check_resources(run), machine.check_packages(config), check_data(run), check_files(config))
    refusals.of(place.check_folders(config), *(_served(run, name) for name in local_policies(run.mas)))
    tools: Mapping[str, Tool] = {}
    if run.mode:
        tools, wrong = refusals.result(partial(configured_tools, run)) or ({}, [])
        refusals.of(wrong, check_tool_prompts(run, tools), check_workflow_ready(run))
        refusals.of(check_finalized(run), check_reachable(run))
    refusals.of(run_folder.check_checkpoint(run))
    if not refusals.errors:
        refusals.of(session.check_rows(run))
        played = refusals.result(partial(session.play, run, tools)) if run.mode else None
        refusals.of(session.check_session(run, played) if played else (), answers.check_rewards(run, played))
    refusals.of(check_capacity(run))


def _served(run: ExaminedRun, name: str) -> Iterator[Problem]:
    view = run.view(name).config
    wrong = list(place.check_model(view))
    yield from wrong
    facts, rollout = facts_of(view[SECTION].rollout.name), view[SECTION].rollout
    if facts.check_options:
        yield from raised_by(facts.check_options, rollout.engine_kwargs)
    if facts.check_model and not any(isinstance(problem, ConfigError) for problem in wrong):
        path = str(view[SECTION].model.path)
        yield from raised_by(facts.check_model, path, view.trainer.device, rollout.engine_kwargs)


def check_workflow_ready(run: ExaminedRun) -> Iterator[Problem]:
    """Run the workflow's own check. With `--gpus`, its errors are only warnings, because a server may be reachable only
    from the machines of the run."""
    for error in raised_by(run.workflow.check, seconds=run.mas.workflow.check_timeout_s):
        yield place.unless_elsewhere(run.config, error) if place.target() else error


def check_reachable(run: Run) -> Iterator[Problem]:
    """Check that the endpoints of remote policies answer before the run starts: Alibaba-NLP/ZeroSearch#24,
    TideDra/lmm-r1#30."""
    for name, spec in run.mas.policies.items():
        if spec.remote and (why := place.no_connection(spec.remote.base_url)):
            value, rule = f"mas.policies.{name}.remote.base_url: {why}", "the endpoint runs before the run starts"
            yield place.unless_elsewhere(run.config, ConfigError(value, rule=rule, fix="start it, or correct base_url"))


def check_finalized(run: Run) -> Iterator[ConfigError]:
    """Check the interpolations in policies with overrides. In a multirun no hook gets the job's configuration, so the
    user must add the settings that `finalize` adds in a single run."""
    overriding = any(spec.overrides for spec in run.mas.policies.values())
    if overriding and (missing := materialize_interpolations(run.copy(), run.mas)):
        value = "in a multirun, interpolated settings do not follow a policy's overrides"
        rule = "verl resolves interpolations before it builds the trainer"
        yield ConfigError(value, rule=rule, fix="add " + " ".join(f"+{item}" for item in missing))


# Check with the formulas of `verl_mas.planning` whether a run fits on the machines of `--gpus`.


def check_capacity(run: ExaminedRun) -> Iterator[Problem]:
    if (hardware := place.target()) is None:
        return
    try:
        plan = plan_of(run, hardware)
    except UnknownSize as error:
        # Only warn, because the run itself does not need the plan.
        yield ConfigWarning(error.value, reason=f"memory was not checked: {error.rule}", fix=error.fix)
        return
    yield from plan.errors
    yield from plan.warnings


def plan_of(run: ExaminedRun, hardware: Hardware, assumed: Assumed | None = None) -> RunPlan:
    """Make the plan of a run. Raises ConfigError if the size of a model, or an agent's policy, is unknown."""
    # An unknown policy is refused first, because rows are counted by policy.
    raise_all(problem for problem in every_rule()["acting"].problems(run) if isinstance(problem, ConfigError))
    for name in ("prompt", "response") if assumed else ():
        most = run.config.data[f"max_{name}_length"]
        if (given := getattr(assumed, name) or 0) > most:
            rule, fix = "this is the most tokens that an act has", "lower it, or raise the other"
            raise ConfigError(f"--assume {name}={given:g} with data.max_{name}_length={most}", rule=rule, fix=fix)
    served = {name: _policy(run, name) for name in local_policies(run.mas)}
    return make_plan(run, served, hardware, usual_step(run, assumed or Assumed(), _sample(run)))


def training_lines(run: ExaminedRun) -> dict[str, str]:
    """Describe the training path of each policy that is trained on GPUs, with its memory if the model is known."""
    if run.config.trainer.device == CPU:
        return {}
    step, found = usual_step(run, Assumed(), _sample(run)), {}
    rows = rows_of(run, step)
    for name in local_policies(run.mas):
        try:
            found[name] = training_line(replace(_policy(run, name), rows=rows.get(name, 0.0)), step)
        except UnknownSize:
            found[name] = str(training_path(run.view(name).config))
    return found


CHARACTERS = 4  # per token, on average


def _sample(run: Run) -> Sample:
    """Measure the average length of the first training prompts with the tokenizer of the first policy. If the tokenizer
    is not on this machine, estimate the length from the number of characters."""
    data, names = run.config.data, local_policies(run.mas)
    first = next((rows for rows in sound_rows(run.config) if not rows.validation), None)
    chat = chat_of(run.view(names[0]).section("model")) if names else None
    total = first.total if first and isinstance(data.train_files, str) else None
    if first is None:
        return Sample(rows=total)
    if chat is None:
        by = f"{CHARACTERS} characters per token, as the tokenizer is not here"
        return Sample(first.characters(data.prompt_key) / CHARACTERS, len(first.sample), total, by)
    settings = {**(data.get("apply_chat_template_kwargs") or {})}
    try:
        prompts = [seen(run.config, row) for row in first.sample]
        texts = [chat.render(messages, settings) for messages in prompts]
        of_images = sum(tokens_of(run.view(names[0]), messages) for messages in prompts)
    except (MasError, ValueError, LookupError, OSError):  # `check_rows` reports the reason
        return Sample(rows=total)
    return Sample((chat.length("".join(texts)) + of_images) / len(texts), len(texts), total)


def _policy(run: Run, name: str) -> Policy:
    return read_policy(run, name, *size_in(run.view(name).section("model"), f"policy {name}: "))


# Functions that the driver and the trainer's process call.


def validate(config: DictConfig) -> MasConfig:
    """Check the settings and the relations between them. Returns the team, or raises all errors in one exception, each
    with value, rule and fix."""
    refusals = Refusals()
    if config.get("mas") is None:
        raise no_team()
    run = _run(config, refusals)
    if run and not refusals.errors:
        refusals.of(check_validated(run), machine.check_resources(run))
    raise_all(refusals.errors)
    assert run is not None
    return run.mas


def require_accepted(config: DictConfig) -> None:
    """Check a configuration in the driver. If it has errors, exit and print all of them; otherwise log its warnings."""
    with exit_on_error():
        report = examine(config)
    if not report.accepted:
        raise SystemExit(f"verl-mas checked this run before Ray starts\n{report.problems}")
    for warning in report.warnings:
        logger.warning("%s", warning)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn exceptions into exits. Hydra only warns about an exception in a callback, so only an exit stops the run."""
    try:
        yield
    except MasError as error:
        raise SystemExit(f"verl-mas: {error}") from error
    except (Exception, SystemExit) as error:
        # It is unknown what the check would have found, so the run ends.
        trace = "".join(traceback.format_exception(error))
        raise SystemExit(f"{trace}verl-mas: a check before the run raised {type(error).__name__}: {error}") from error


def finalize_team(config: DictConfig) -> None:
    """Complete a composed configuration, and log the changes. If that fails, raise all errors that the checks find."""
    refusals = Refusals()
    for line in refusals.result(lambda: complete(config)) or ():
        logger.warning("verl-mas set: %s", line)
    if refusals.errors:
        # The checks usually report the cause, together with all other errors.
        raise_all(examine(config).errors or refusals.errors)
