"""Settings of verl that are sound one by one and cannot work together in the run of a team."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning

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
    if steps and type(last) is int and min(steps) > last:
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


def check_trained(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy that is trained."""
    optim = view[SECTION].actor.optim
    if optim.lr == 0:
        value = f"policy {policy}: actor.optim.lr=0"
        reason = "it computes updates that change nothing"
        yield ConfigWarning(value, reason=reason, fix=f"set a learning rate, or mas.policies.{policy}.trainable=false")
    steps, warmup = view.trainer.total_training_steps, optim.get("lr_warmup_steps")
    if type(warmup) is int and type(steps) is int and warmup >= steps:
        value = f"policy {policy}: actor.optim.lr_warmup_steps={warmup} with trainer.total_training_steps={steps}"
        reason = "the run ends before the learning rate has reached its value"
        yield ConfigWarning(value, reason=reason, fix=f"lower {SECTION}.actor.optim.lr_warmup_steps")


def _fetched(config: DictConfig) -> Iterator[Problem]:
    size, batch = config.data.get("gen_batch_size"), config.data.train_batch_size
    if not size or type(size) is not int or type(batch) is not int:
        return
    if config.trainer.v1.sampler.get("sync_refill_failed_groups") and size != 1:
        value = f"data.gen_batch_size={size} with trainer.v1.sampler.sync_refill_failed_groups=True"
        rule = "a failed task is replaced by one other, so tasks are read one by one"
        yield ConfigError(value, rule=rule, fix="remove data.gen_batch_size")
    elif batch % size:
        rule = "a training step reads a whole number of data.gen_batch_size"
        fix = "remove data.gen_batch_size, or set it to a divisor of data.train_batch_size"
        yield ConfigError(f"data.gen_batch_size={size} with data.train_batch_size={batch}", rule=rule, fix=fix)
