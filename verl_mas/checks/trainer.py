"""Checks of the trainer: verl's own settings with which a team cannot be trained, and what each mode cannot have."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.verl.combinations import UNREAD, UNREAD_BY_POLICY, combinations
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import LOSS_MODES
from verl_mas.config.modes import KEY, MODES, SYNC, mode_of
from verl_mas.config.placement import local_policies, time_sliced, used_pools, workers
from verl_mas.config.run import Run
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.engines.serving import MOST, serving
from verl_mas.errors import ConfigError, ConfigWarning

# verl's modes that have an asynchronous one of a team beside them.
ASYNCHRONOUS_OF_VERL = {mode.verl for mode in MODES.values() if mode.asynchronous}


def is_team(config: DictConfig) -> bool:
    return mode_of(config) is not None


def check_mode(config: DictConfig) -> Iterator[Problem]:
    """Of a run that is not one of a team: whether it was meant to be."""
    mode = OmegaConf.select(config, KEY)
    if config.get("mas") is None and mode in MODES:
        yield no_team(mode)
    elif config.get("mas") is not None and mode in ASYNCHRONOUS_OF_VERL:
        value = f"{KEY}={mode} with a team (`mas`)"
        rule = "verl's own asynchronous trainers know one policy and no agents"
        yield ConfigError(value, rule=rule, fix=f"add +mas/mode={mode} after +mas= and +recipe=, and do not set {KEY}")
    elif config.get("mas") is not None and str(mode).startswith(SYNC.name):
        yield ConfigError(f"{KEY}={mode}", rule=f"a team is trained by {', '.join(MODES)}", fix=f"remove {KEY}")
    elif config.get("mas") is not None:
        reason = "verl's own trainer runs, which knows no agents and no policies"
        fix = f"add +mas=<team>, which sets it to {SYNC.name}; a team is trained by {', '.join(MODES)}"
        yield ConfigWarning(f"{KEY}={mode} with a team (`mas`)", reason=reason, fix=fix)


def check_own_estimator(config: DictConfig) -> Iterator[ConfigError]:
    """Of a run of verl's own trainers."""
    name = str(config.algorithm.adv_estimator)
    if name in ESTIMATORS and (ESTIMATORS[name].remembers or ESTIMATORS[name].needs):
        value = f"algorithm.adv_estimator={name} without a team"
        reads = "the scores of earlier steps" if ESTIMATORS[name].remembers else " and ".join(ESTIMATORS[name].needs)
        rule = f"it reads {reads}, which verl's own trainers do not keep"
        yield ConfigError(value, rule=rule, fix="add +mas=<team>, or set algorithm.adv_estimator=agent_grpo")


def no_team(mode: str = SYNC.name) -> ConfigError:
    rule = f"{KEY}={mode} trains the team of the `mas` block, which a group adds"
    fix = "add +mas=<team>, such as +mas=solver_verifier, or a recipe with a team, such as +recipe=math/shared"
    return ConfigError("the command has no team", rule=rule, fix=fix)


def check_settings(config: DictConfig) -> Iterator[Problem]:
    if config.get("mas") is None:
        yield no_team()
        return
    yield from combinations("settings", config, mode=mode_of(config))
    if wants_critic(config):
        value = f"algorithm.adv_estimator={config.algorithm.adv_estimator}, critic.enable={config.critic.enable}"
        rule = "a critic would need one value model per policy; verl-mas uses groups of sessions as the baseline"
        yield ConfigError(value, rule=rule, fix="set algorithm.adv_estimator=agent_grpo, and do not set critic.enable")


def wants_critic(config: DictConfig) -> bool:
    return bool(config.critic.enable) or (config.critic.enable is None and config.algorithm.adv_estimator == "gae")


def check_trainable(run: Run) -> Iterator[ConfigError]:
    if not run.trained and not run.config.trainer.val_only:
        fix = "set mas.policies.<policy>.trainable=True, or trainer.val_only=True"
        yield ConfigError("no policy is trainable", rule="training needs a policy with weights to train", fix=fix)


# What an asynchronous mode cannot have, how stale rows may be, how weights are sent.


def check_phases(run: Run) -> Iterator[ConfigError]:
    """`mas` is settled: `serving: auto` is replaced by what it means."""
    mode, asked = run.mode, Run.of(run.config)
    if mode is None or not mode.asynchronous:
        return
    for pool in used_pools(run.mas):
        if asked.mas.pools[pool].serving == "phases" or time_sliced(run.mas, pool):
            yield ConfigError(
                f"mas.pools.{pool}.serving={asked.mas.pools[pool].serving}: in phases "
                f"({serving(asked, pool).reason}) with {KEY}={mode.name}",
                rule="an engine that waits for its phase would be woken during the training, and a phase ends only "
                "when no request runs",
                fix=f"set ++mas.pools.{pool}.serving=together with rollout.gpu_memory_utilization that add up to at "
                f"most {MOST:g}, or put each policy on a pool of its own",
            )


# Settings that are sound one by one and cannot work together in the run of a team, and those that it does not read.


def _unread_by_all(run: Run) -> Iterator[Problem]:
    """What one policy does not read, another one may."""
    found = [list(combinations(UNREAD_BY_POLICY, run.view(name).config)) for name in run.trained]
    yield from (problem for problem in found[0] if all(problem in others for others in found)) if found else ()


def check_together(run: Run) -> Iterator[Problem]:
    config, local = run.config, local_policies(run.mas)
    facts = {"mas": run.mas, "mode": run.mode, "stale": run.staleness, "run": run}
    whole = {"workers": workers(config), "first_profiled": min(config.global_profiler.steps or (), default=None)}
    whole |= {"one_task": 1 / config.data.train_batch_size}
    batch = config.data.train_batch_size + run.sessions_per_step
    in_flight = batch * run.staleness.least if run.staleness else None
    yield from combinations("run", config, "", in_flight=in_flight, **whole, **facts)
    yield from combinations(UNREAD, config)
    yield from _unread_by_all(run)
    several = ", ".join(name for name in ENGINES if ENGINES[name].many)
    for name in dict.fromkeys([*local, *run.trained]):
        view, whose = run.view(name), f"policy {name}: "
        of_policy = facts | {"own": view.spec, "policy": name, "engine": facts_of(view.engine)}
        if name in local:
            yield from combinations("served", view.config, whose, served=len(local), several=several, **of_policy)
        if name in run.trained:
            weighting = LOSS_MODES[run.mas.loss.weighting] if run.mas.loss.weighting else None
            of_policy |= {"updates": view.updates_per_step, "correction": view.correction, "weighting": weighting}
            of_policy["proportional"] = view.proportional
            mini_batch = view.value("actor.ppo_mini_batch_size")
            of_policy |= {"mini_batch": mini_batch, "by_mini_batch": config.data.train_batch_size // mini_batch}
            yield from combinations("trained", view.config, whose, **of_policy)
