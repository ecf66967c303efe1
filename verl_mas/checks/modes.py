"""Checks of the trainer modes: what an asynchronous mode cannot have, how stale rows may be, how weights are sent."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.trainer import Required, unmet
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.modes import (
    COLOCATED,
    KEY,
    SEPARATE,
    STRATEGY,
    SYNC,
    THRESHOLD,
    Mode,
    Staleness,
)
from verl_mas.config.placement import local_policies, time_sliced, used_pools
from verl_mas.config.run import Run
from verl_mas.config.verl_settings import section_at, verl_settings
from verl_mas.engines.serving import MOST, serving
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.platform import DEVICE as CPU

ASYNCHRONOUS = (COLOCATED, SEPARATE)
ENGINE = "rollout.checkpoint_engine"
STORAGE = "transfer_queue.backend"
REQUIRED = (
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


def check_modes(run: Run) -> Iterator[Problem]:
    mode, stale = run.mode, run.staleness
    if mode is None:
        return  # Refused by check_settings.
    yield from unmet(run.config, REQUIRED)
    if stale is None:
        yield from _set_back(run.config)
        return
    yield from _disaggregated(run, mode)
    yield from _staleness(run, mode, stale)
    if stale.warmup:
        yield from _saved(run.config)
        yield from _repeatable(run, mode, stale)
    if mode is SEPARATE:
        yield from _weights(run)
        yield from _adapters(run)


def _set_back(config: DictConfig) -> Iterator[ConfigError]:
    """`+mas/mode` before `+recipe`: the recipe's team has set the mode back, and nothing else."""
    default = section_at("trainer.v1.sampler", verl_settings())
    assert default is not None
    values = {key: OmegaConf.select(config, key) for key in (THRESHOLD, STRATEGY)}
    set_here = {key: value for key, value in values.items() if value != default.yaml[key.rpartition(".")[2]]}
    if set_here:
        yield ConfigError(
            f"{', '.join(f'{key}={value}' for key, value in set_here.items())} with {KEY}={SYNC.name}",
            rule="only the asynchronous modes read it, and a team sets the mode to this one",
            fix="put +mas/mode=<mode> after +mas= and +recipe=, or remove the setting",
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


def _disaggregated(run: Run, mode: Mode) -> Iterator[ConfigError]:
    for name in local_policies(run.mas):
        if run.view(name).get("rollout.disaggregation.enabled"):
            yield ConfigError(
                f"policy {name}: rollout.disaggregation.enabled=True with {KEY}={mode.name}",
                rule="verl stops and resumes whole engines, not pairs of one for prompts and one for replies",
                fix=f"set {SECTION}.rollout.disaggregation.enabled=False",
            )


def _staleness(run: Run, mode: Mode, stale: Staleness) -> Iterator[Problem]:
    config = run.config
    least, key = stale.least, mode.warmup_key
    if stale.threshold is None or stale.threshold < least:
        late = (
            "there is no bound on how stale rows are"
            if stale.threshold is None
            else "each step waits for its newest tasks"
        )
        if stale.threshold is not None and stale.strategy == "drop":
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
    if type(steps) is int and stale.warmup >= steps:
        yield ConfigError(
            f"{key}={stale.warmup} with trainer.total_training_steps={steps}",
            rule="all tasks of the run would be dispatched before its first step, and none would see a change",
            fix=f"set {key}=1",
        )
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
        yield ConfigError(
            f"{STORAGE}.storage_backend={backend} with trainer.save_freq={config.trainer.save_freq}",
            rule="a checkpoint has the rows of later steps, and verl saves those of SimpleStorage only",
            fix=f"set {STORAGE}.storage_backend=SimpleStorage, or trainer.save_freq=-1",
        )


def _repeatable(run: Run, mode: Mode, stale: Staleness) -> Iterator[ConfigError]:
    for name in local_policies(run.mas):
        if run.view(name).get("rollout.full_determinism"):
            yield ConfigError(
                f"policy {name}: rollout.full_determinism=True with {mode.warmup_key}={stale.warmup:g}",
                rule="the time at which a step ends decides which weights write a token, so no run repeats another",
                fix=f"set {mode.warmup_key}=0, with which no session is in flight during training, or "
                f"{SECTION}.rollout.full_determinism=False",
            )


def _weights(run: Run) -> Iterator[ConfigError]:
    """How weights get to engines on other GPUs."""
    on_cpu = run.config.trainer.device == CPU
    for name in run.trained:
        view = run.view(name)
        backend = str(view.value(f"{ENGINE}.backend"))
        if backend == "naive" or (on_cpu and backend != "ray"):
            yield ConfigError(
                f"policy {name}: {ENGINE}.backend={backend} with {KEY}={SEPARATE.name}"
                + (" on the CPU" if on_cpu else ""),
                rule="it copies weights within a process, and the engines are in others"
                if backend == "naive"
                else "it sends weights between GPUs",
                fix="leave it to +mas/mode=separate_async, which sets ray on the CPU and nccl on GPUs",
            )
        options = view.get(f"{ENGINE}.engine_kwargs.{backend}")
        if options and options.get("group_name") is not None:
            yield ConfigError(
                f"policy {name}: {ENGINE}.engine_kwargs.{backend}.group_name={options.group_name}",
                rule="processes that exchange weights find each other by this name, so each policy has its own",
                fix="remove it",
            )


def _adapters(run: Run) -> Iterator[ConfigError]:
    """Of policies that are no adapter of another."""
    for name in run.trained:
        view = run.view(name)
        rank, merged = (view.get(f"model.{key}") for key in ("lora_rank", "lora.merge"))
        if rank and not merged and not view.spec.adapter_of:
            yield ConfigError(
                f"policy {name}: model.lora_rank={rank} with {KEY}={SEPARATE.name}",
                rule="verl sends whole weights to engines on other GPUs, and leaves adapters out (verl #7495)",
                fix=f"use +mas/mode=colocate_async, or set ++{SECTION}.model.lora.merge=True",
            )
