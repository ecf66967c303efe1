"""Checks of the trainer: verl's own settings with which a team cannot be trained, and what each mode cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import COLOCATED, KEY, MODES, SEPARATE, STRATEGY, SYNC, THRESHOLD, Mode, Staleness, mode_of
from verl_mas.config.placement import local_policies, time_sliced, used_pools
from verl_mas.config.run import Run
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.engines.serving import MOST, serving
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.platform import DEVICE as CPU


@dataclass(frozen=True)
class Required:
    """A setting with one allowed value in a run of a team. A false `value` also allows null or no setting."""

    key: str
    value: object
    rule: str
    fix: str
    modes: tuple[Mode, ...] = tuple(MODES.values())


ASYNCHRONOUS = (COLOCATED, SEPARATE)
REQUIRED = (
    Required("trainer.use_v1", True, "teams need verl's V1 trainer", "set trainer.use_v1=True"),
    Required(
        f"{SECTION}.hybrid_engine",
        True,
        "policies train and serve on the same GPUs",
        f"set {SECTION}.hybrid_engine=True, or add +mas/mode=separate_async, whose engines have GPUs of their own",
        # With engines apart nothing reads it.
        (SYNC, COLOCATED),
    ),
    Required(
        "algorithm.use_kl_in_reward",
        False,
        "agents on different policies, each with its own reference, share one reward",
        "set algorithm.use_kl_in_reward=False, and "
        f"{SECTION}.actor.use_kl_loss=True (or per policy, in mas.policies.<policy>.overrides.actor)",
    ),
    Required(
        "algorithm.norm_adv_by_std_in_grpo",
        True,
        "a team's estimators read mas.advantage",
        "set algorithm.norm_adv_by_std_in_grpo=True ++mas.advantage.scale=none",
    ),
    Required(
        "algorithm.filter_groups.enable",
        False,
        "verl drops a task if all its rows have the same value; a team's rows are acts of several agents, which differ "
        "although the rows of each agent agree, or agree because they are of one session",
        "set algorithm.filter_groups.enable=False mas.filter.drop=uniform, which drops a task if every group of "
        "its agents is uniform, and mas.filter.refill=True, which replaces it",
    ),
    Required(
        f"{SECTION}.rollout.agent.default_agent_loop",
        "mas",
        "every task of a team is played by its workflow",
        "leave it to +mas=<team>, which sets it",
    ),
    Required(
        f"{SECTION}.rollout.agent.agent_loop_manager_class",
        "verl_mas.rollout.manager.MasAgentLoopManager",
        "this class starts the workers that run workflows",
        "leave it to +mas=<team>, which sets it",
    ),
    Required("distillation.enabled", False, "a teacher is not supported for a team", "set distillation.enabled=False"),
    Required(
        "trainer.v1.sampler.custom_sampler.path",
        None,
        "the team chooses which tasks a step trains on: the oldest ones, when they are complete",
        "remove trainer.v1.sampler.custom_sampler",
        ASYNCHRONOUS,
    ),
    Required(
        "skip.rollout_tq.enable",
        False,
        "verl stores and replays one rollout per step, and here tasks are dispatched and trained on in different steps",
        f"set skip.rollout_tq.enable=False, or {KEY}={SYNC.name}",
        ASYNCHRONOUS,
    ),
    Required(
        "trainer.v1.separate_async.parameter_sync_step",
        1,
        "weights are sent after every step: verl's copy of the weights between two sends is in the same memory as the "
        "weights on the CPU and with param_offload, and mas.updates_per_step counts the optimiser steps",
        "set trainer.v1.separate_async.parameter_sync_step=1",
        (SEPARATE,),
    ),
    Required(
        "trainer.v1.separate_async.hybrid_rollout.enable_switch",
        False,
        "it lets the engines of one policy use the training's GPUs, and a team has several policies",
        "set trainer.v1.separate_async.hybrid_rollout.enable_switch=False",
        (SEPARATE,),
    ),
)
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
    elif config.get("mas") is not None:
        reason = "verl's own trainer runs, which knows no agents and no policies"
        fix = f"add +mas=<team>, which sets it to {SYNC.name}; a team is trained by {', '.join(MODES)}"
        yield ConfigWarning(f"{KEY}={mode} with a team (`mas`)", reason=reason, fix=fix)


def check_own_estimator(config: DictConfig) -> Iterator[ConfigError]:
    """Of a run of verl's own trainers."""
    name = str(config.algorithm.adv_estimator)
    if name in ESTIMATORS and ESTIMATORS[name].remembers:
        value = f"algorithm.adv_estimator={name} without a team"
        rule = "it compares rows with the scores of earlier steps, which verl's own trainers do not keep"
        yield ConfigError(value, rule=rule, fix="add +mas=<team>, or set algorithm.adv_estimator=agent_grpo")


def no_team(mode: str = SYNC.name) -> ConfigError:
    rule = f"{KEY}={mode} trains the team of the `mas` block, which a group adds"
    fix = "add +mas=<team>, such as +mas=solver_verifier, or a recipe with a team, such as +recipe=math/shared"
    return ConfigError("the command has no team", rule=rule, fix=fix)


def check_settings(config: DictConfig) -> Iterator[ConfigError]:
    if config.get("mas") is None:
        yield no_team()
        return
    yield from unmet(config, REQUIRED)
    if wants_critic(config):
        value = f"algorithm.adv_estimator={config.algorithm.adv_estimator}, critic.enable={config.critic.enable}"
        rule = "a critic would need one value model per policy; verl-mas uses groups of sessions as the baseline"
        yield ConfigError(value, rule=rule, fix="set algorithm.adv_estimator=agent_grpo, and do not set critic.enable")
    if config.reward.reward_model.enable and not config.reward.reward_model.enable_resource_pool:
        value = "reward.reward_model.enable=True on the policies' GPUs"
        rule = "a session is scored when it ends, while the engines are awake"
        yield ConfigError(value, rule=rule, fix="set reward.reward_model.enable_resource_pool=True, with its own GPUs")


def unmet(
    config: DictConfig, settings: Iterable[Required], section: str = "", whose: str = ""
) -> Iterator[ConfigError]:
    """Settings that do not have the value that the mode of the run allows."""
    mode = mode_of(config) or SYNC
    for required in settings:
        value = OmegaConf.select(config, section + required.key)
        if mode in required.modes and value != required.value and (value or required.value):
            yield ConfigError(f"{whose}{required.key}={value}", rule=required.rule, fix=required.fix)


def wants_critic(config: DictConfig) -> bool:
    return bool(config.critic.enable) or (config.critic.enable is None and config.algorithm.adv_estimator == "gae")


def check_trainable(run: Run) -> Iterator[ConfigError]:
    if not run.trained and not run.config.trainer.val_only:
        fix = "set mas.policies.<policy>.trainable=True, or trainer.val_only=True"
        yield ConfigError("no policy is trainable", rule="training needs a policy with weights to train", fix=fix)


# What an asynchronous mode cannot have, how stale rows may be, how weights are sent.


ENGINE = "rollout.checkpoint_engine"
STORAGE = "transfer_queue.backend"


def check_modes(run: Run) -> Iterator[Problem]:
    mode, stale = run.mode, run.staleness
    if mode is None:
        return  # Not the mode of a team.
    if stale is None:
        # `+mas/mode` before `+recipe`: the recipe's team has set the mode back, and nothing else.
        default = section_at("trainer.v1.sampler", verl_settings())
        assert default is not None
        values = {key: OmegaConf.select(run.config, key) for key in (THRESHOLD, STRATEGY)}
        set_here = {key: value for key, value in values.items() if value != default.yaml[key.rpartition(".")[2]]}
        if set_here:
            yield ConfigError(
                f"{', '.join(f'{key}={value}' for key, value in set_here.items())} with {KEY}={SYNC.name}",
                rule="only the asynchronous modes read it, and a team sets the mode to this one",
                fix="put +mas/mode=<mode> after +mas= and +recipe=, or remove the setting",
            )
        return
    for name in local_policies(run.mas):
        if run.view(name).get("rollout.disaggregation.enabled"):
            value = f"policy {name}: rollout.disaggregation.enabled=True with {KEY}={mode.name}"
            rule = "verl stops and resumes whole engines, not pairs of one for prompts and one for replies"
            yield ConfigError(value, rule=rule, fix=f"set {SECTION}.rollout.disaggregation.enabled=False")
    yield from _staleness(run, mode, stale)
    if stale.warmup:
        yield from _saved(run.config)
        for name in local_policies(run.mas):
            if run.view(name).get("rollout.full_determinism"):
                yield ConfigError(
                    f"policy {name}: rollout.full_determinism=True with {mode.warmup_key}={stale.warmup:g}",
                    rule="the time at which a step ends decides which weights write a token, so no run repeats another",
                    fix=f"set {mode.warmup_key}=0, with which no session is in flight during training, or "
                    f"{SECTION}.rollout.full_determinism=False",
                )
    if mode is SEPARATE:
        yield from _weights(run)
        # Of policies that are no adapter of another.
        for name in run.trained:
            view = run.view(name)
            rank, merged = (view.get(f"model.{key}") for key in ("lora_rank", "lora.merge"))
            if rank and not merged and not view.spec.adapter_of:
                rule = "verl sends whole weights to engines on other GPUs, and leaves adapters out (verl #7495)"
                fix = f"use +mas/mode=colocate_async, or set ++{SECTION}.model.lora.merge=True"
                yield ConfigError(
                    f"policy {name}: model.lora_rank={rank} with {KEY}={SEPARATE.name}", rule=rule, fix=fix
                )


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


def _staleness(run: Run, mode: Mode, stale: Staleness) -> Iterator[Problem]:
    config = run.config
    least, key = stale.least, mode.warmup_key
    if stale.threshold is None or stale.threshold < least:
        late = "each step waits for its newest tasks"
        if stale.threshold is None:
            late = "there is no bound on how stale rows are"
        elif stale.strategy == "drop":
            late = "every group is dropped as too old"
        yield ConfigError(
            f"{THRESHOLD}={stale.threshold} with {key}={stale.warmup:g}",
            rule=f"tasks are {stale.warmup:g} steps ahead of the training, so a group is of up to {least} versions of "
            f"the weights; here {late}",
            fix=f"set {THRESHOLD}={least}",
        )
    if stale.strategy == "drop":
        yield ConfigWarning(
            f"{STRATEGY}=drop",
            reason="the tasks with the longest sessions are left out: in a simulation of W=1, T=2 on the same GPUs, "
            "15 % of the groups, and the mean session that is trained on was 12 % too short",
            fix=f"set {STRATEGY}=wait",
        )
    steps = config.trainer.total_training_steps
    if steps and stale.warmup >= steps:
        value = f"{key}={stale.warmup} with trainer.total_training_steps={steps}"
        rule = "all tasks of the run would be dispatched before its first step, and none would see a change"
        yield ConfigError(value, rule=rule, fix=f"set {key}=1")
    held = OmegaConf.select(config, f"{STORAGE}.SimpleStorage.total_storage_size")
    tasks, sessions = config.data.train_batch_size, run.sessions_per_step
    needed = least * (tasks + sessions)
    if held is not None and held < needed:
        yield ConfigError(
            f"{STORAGE}.SimpleStorage.total_storage_size={held} with {key}={stale.warmup:g}",
            rule=f"up to {least} batches are in flight, each with {tasks} tasks and at least {sessions} rows, "
            f"together {needed}",
            fix=f"remove it: without it the storage grows as needed; or lower {key}",
        )


def _saved(config: DictConfig) -> Iterator[ConfigError]:
    backend = OmegaConf.select(config, f"{STORAGE}.storage_backend")
    if config.trainer.save_freq > 0 and backend != "SimpleStorage":
        value = f"{STORAGE}.storage_backend={backend} with trainer.save_freq={config.trainer.save_freq}"
        rule = "a checkpoint has the rows of later steps, and verl saves those of SimpleStorage only"
        yield ConfigError(value, rule=rule, fix=f"set {STORAGE}.storage_backend=SimpleStorage, or trainer.save_freq=-1")


def _weights(run: Run) -> Iterator[ConfigError]:
    """How weights get to engines on other GPUs."""
    on_cpu = run.config.trainer.device == CPU
    for name in run.trained:
        view = run.view(name)
        backend = str(view.value(f"{ENGINE}.backend"))
        if backend == "naive" or (on_cpu and backend != "ray"):
            value = f"policy {name}: {ENGINE}.backend={backend} with {KEY}={SEPARATE.name}"
            rule = "it sends weights between GPUs, and the run is on the CPU"
            if backend == "naive":
                rule = "it copies weights within a process, and the engines are in others"
            fix = "leave it to +mas/mode=separate_async, which sets ray on the CPU and nccl on GPUs"
            yield ConfigError(value, rule=rule, fix=fix)
        options = view.get(f"{ENGINE}.engine_kwargs.{backend}")
        if options and options.get("group_name") is not None:
            value = f"policy {name}: {ENGINE}.engine_kwargs.{backend}.group_name={options.group_name}"
            rule = "processes that exchange weights find each other by this name, so each policy has its own"
            yield ConfigError(value, rule=rule, fix="remove it")


# Settings of verl that are sound one by one and cannot work together in the run of a team.


MANY_SESSIONS = 50_000


def check_together(run: Run) -> Iterator[Problem]:
    yield from _fetched(run.config)
    # What is profiled is chosen in two places; with one of them verl profiles nothing.
    config = run.config
    steps, last = config.global_profiler.steps, config.trainer.total_training_steps
    if steps and config.global_profiler.tool and not config[SECTION].actor.profiler.enable:
        value = f"global_profiler.tool={config.global_profiler.tool} with {SECTION}.actor.profiler.enable=False"
        fix = f"set {SECTION}.actor.profiler.enable=True {SECTION}.actor.profiler.all_ranks=True"
        yield ConfigWarning(value, reason="only workers with an enabled profiler are profiled", fix=fix)
    if steps and last and min(steps) > last:
        value = f"global_profiler.steps={list(steps)} with trainer.total_training_steps={last}"
        yield ConfigWarning(value, reason="the run ends before the first of these steps", fix="lower them")
    if nodes := run.config[SECTION].rollout.get("nnodes"):
        value = f"{SECTION}.rollout.nnodes={nodes}"
        reason = "only verl's own trainer mode separate_async reads it; a team's engines are on the GPUs of a pool"
        yield ConfigWarning(value, reason=reason, fix="remove it, and set trainer.nnodes or mas.pools")
    for name in local_policies(run.mas):
        rollout = run.view(name).section("rollout")
        if rollout.prometheus.enable and rollout.disable_log_stats:
            value = f"policy {name}: rollout.prometheus.enable=True with rollout.disable_log_stats=True"
            rule = "verl collects what the engine logs, and ends the run without it"
            yield ConfigError(value, rule=rule, fix=f"set {SECTION}.rollout.disable_log_stats=False")
    if run.config.trainer.val_only and not run.config.trainer.val_before_train:
        value = "trainer.val_only=True with trainer.val_before_train=False"
        reason = "verl ends after the validation before training, and without it the run trains"
        yield ConfigWarning(value, reason=reason, fix="set trainer.val_before_train=True")
    batch = run.config.data.train_batch_size
    sessions = run.sessions_per_step
    if sessions > MANY_SESSIONS:
        value = f"data.train_batch_size={batch} with {SECTION}.rollout.n={run.config[SECTION].rollout.n}"
        reason = f"one training step has {sessions} sessions"
        yield ConfigWarning(value, reason=reason, fix="lower data.train_batch_size")
    for name in run.trained:
        view = run.view(name)
        mini = int(view.value("actor.ppo_mini_batch_size"))
        if (view.spec.updates_per_step or run.mas.updates_per_step) is None and batch % mini:
            value = f"policy {name}: data.train_batch_size={batch} with actor.ppo_mini_batch_size={mini}"
            reason = f"a training step has a whole number of optimiser steps, here {view.updates_per_step}"
            fix = "set mas.updates_per_step, or a mini batch that divides the batch"
            yield ConfigWarning(value, reason=reason, fix=fix)
    if (address := OmegaConf.select(run.config, "ray_kwargs.ray_init.address")) and address != "local":
        value = f"ray_kwargs.ray_init.address={address}"
        reason = "the run joins a Ray cluster that is already there, so its GPUs and CPUs are not checked here"
        yield ConfigWarning(value, reason=reason, fix="leave it out to start Ray on this machine")


def _fetched(config: DictConfig) -> Iterator[Problem]:
    size, batch = config.data.get("gen_batch_size"), config.data.train_batch_size
    if not size:
        return
    if config.trainer.v1.sampler.get("sync_refill_failed_groups") and size != 1:
        value = f"data.gen_batch_size={size} with trainer.v1.sampler.sync_refill_failed_groups=True"
        rule = "a failed task is replaced by one other, so tasks are read one by one"
        yield ConfigError(value, rule=rule, fix="remove data.gen_batch_size")
    elif batch % size:
        rule = "a training step reads a whole number of data.gen_batch_size"
        fix = "remove data.gen_batch_size, or set it to a divisor of data.train_batch_size"
        yield ConfigError(f"data.gen_batch_size={size} with data.train_batch_size={batch}", rule=rule, fix=fix)
