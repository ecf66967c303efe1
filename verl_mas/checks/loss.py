"""Checks of `mas.loss` and `mas.filter`: what counts in the loss, and which tasks are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_mas.advantage import ESTIMATORS, AdvantageInput, AdvantageOptions, compute_advantages
from verl_mas.advantage.record import COLUMNS
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import LOSS_MODES, SECTION
from verl_mas.config.run import Run
from verl_mas.config.schema import FilterSpec
from verl_mas.errors import ConfigError, ConfigWarning

# The default of verl: a run that sets it looks like one that sets nothing.
UNSET = "token-mean"
# Losses of verl that do not aggregate by loss_agg_mode -> how they do.
OWN_AGGREGATION = {"sapo": "seq-mean-token-mean", "geo_mean": "the mean over the rows of a micro batch"}


def check_loss(run: Run) -> Iterator[ConfigError]:
    weighting = run.mas.loss.weighting
    if weighting is None:
        return
    mode = LOSS_MODES[weighting]
    for name in run.trained:
        actor = run.view(name).section("actor")
        if actor.loss_agg_mode not in (UNSET, mode):
            value = f"policy {name}: mas.loss.weighting={weighting} with actor.loss_agg_mode={actor.loss_agg_mode}"
            rule = "both say how rows are added up to the loss"
            yield ConfigError(value, rule=rule, fix=f"remove {SECTION}.actor.loss_agg_mode, or mas.loss.weighting")
        loss = actor.policy_loss.loss_mode
        if OWN_AGGREGATION.get(loss, mode) != mode:
            value = f"policy {name}: mas.loss.weighting={weighting} with actor.policy_loss.loss_mode={loss}"
            rule = f"this loss of verl adds rows up in a way of its own: {OWN_AGGREGATION[loss]}"
            fix = "set mas.loss.weighting=row" if OWN_AGGREGATION[loss] in LOSS_MODES.values() else _WITHOUT
            yield ConfigError(value, rule=rule, fix=fix)


_WITHOUT = "remove mas.loss.weighting, or choose another loss, such as vanilla"


def check_filter(run: Run) -> Iterator[Problem]:
    spec = run.mas.filter
    if run.config.trainer.val_only:
        return
    if spec.keep_share is not None:
        yield from _keep_share(run, spec.keep_share)
    if spec.refill:
        yield from _refill(run.config, spec)
    elif spec.max_rounds != FilterSpec.max_rounds:
        value = f"mas.filter.max_rounds={spec.max_rounds} with mas.filter.refill=False"
        reason = "without a refill, each step samples once"
        yield ConfigWarning(value, reason=reason, fix="set mas.filter.refill=True, or remove it")
    if spec.drop == "uniform":
        yield from _drop_uniform(run)


def _keep_share(run: Run, share: float) -> Iterator[Problem]:
    if share == 1:
        yield ConfigWarning(
            "mas.filter.keep_share=1", reason="every task is kept", fix="lower it, such as to 0.5, or remove it"
        )
    if run.config[SECTION].rollout.n == 1:
        rule = "tasks are kept by how much the team's reward differs between their sessions, and there is one"
        fix = f"set {SECTION}.rollout.n=8, or mas.filter.drop=uniform, which reads the estimator's own groups"
        yield ConfigError(f"mas.filter.keep_share={share:g} with {SECTION}.rollout.n=1", rule=rule, fix=fix)
    if not run.mas.reward.team:
        value = f"mas.filter.keep_share={share:g} with mas.reward.team={run.mas.reward.team}"
        rule = "tasks are kept by how much the team's reward differs between their sessions, and it has no weight"
        fix = "set mas.reward.team=1, or mas.filter.drop=uniform, which reads the estimator's own groups"
        yield ConfigError(value, rule=rule, fix=fix)


def _refill(config: DictConfig, spec: FilterSpec) -> Iterator[ConfigError]:
    if spec.drop is None and spec.keep_share in (None, 1):
        rule = "it replaces the tasks that mas.filter leaves out"
        fix = "set mas.filter.drop=uniform or mas.filter.keep_share=0.5, or remove it"
        yield ConfigError("mas.filter.refill=True without a filter", rule=rule, fix=fix)
    if config.data.get("gen_batch_size") not in (None, 1):
        value = f"data.gen_batch_size={config.data.gen_batch_size} with mas.filter.refill=True"
        rule = "as many tasks are read as are missing, so they are read one by one"
        yield ConfigError(value, rule=rule, fix="remove data.gen_batch_size")
    if OmegaConf.select(config, "skip.rollout_tq.enable"):
        value = "skip.rollout_tq.enable=True with mas.filter.refill=True"
        rule = "verl stores and replays one rollout per step, and a refill samples several times"
        yield ConfigError(value, rule=rule, fix="set skip.rollout_tq.enable=False, or mas.filter.refill=False")


def _drop_uniform(run: Run) -> Iterator[ConfigError]:
    name = str(run.config.algorithm.adv_estimator)
    if name in ESTIMATORS and not _task_by_task(name, AdvantageOptions.from_config(run.mas.advantage)):
        yield ConfigError(
            f"mas.filter.drop=uniform with algorithm.adv_estimator={name}",
            rule="a task is dropped if none of its rows has an advantage, and this estimator does not compare the rows "
            "of a task with each other alone: rows of equal scores have one, too",
            fix="set algorithm.adv_estimator=agent_grpo, or mas.filter.keep_share=0.5 instead of mas.filter.drop",
        )


def _task_by_task(name: str, options: AdvantageOptions) -> bool:
    """Whether the estimator gives no row an advantage in a batch of two uniform tasks of different scores."""
    if ESTIMATORS[name].reads_running(options):
        return False
    import torch

    labels: dict[str, Any] = dict.fromkeys(COLUMNS, [0] * 4)
    labels |= {"task": ["a", "a", "b", "b"], "session": [0, 1, 0, 1]}
    rows = AdvantageInput(torch.tensor([0.0, 0.0, 1.0, 1.0]), tokens=torch.ones(4), **labels)
    return not bool(compute_advantages(name, rows, options).advantages.any())
