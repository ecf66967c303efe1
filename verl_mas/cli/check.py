"""Check a team's configuration without starting Ray, and show the team."""

from __future__ import annotations

import sys

from omegaconf import DictConfig
from rich.tree import Tree

from verl_mas.advantage.options import AdvantageOptions
from verl_mas.checks.run import examine_command
from verl_mas.cli._output import console
from verl_mas.config.compose import compose
from verl_mas.config.describe import settings
from verl_mas.config.load import load
from verl_mas.config.merge import SECTION, policy_value, sessions_per_step, updates_per_step
from verl_mas.config.placement import policies_on, pool_shape
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.engines.transformers.options import PATH as ENGINE
from verl_mas.engines.transformers.options import Options
from verl_mas.platform import DEVICE as CPU
from verl_mas.user_code import load_user_code
from verl_mas.workflow.base import agents_of, find, resolve

USAGE = """usage: verl-mas check <arguments of python -m verl.trainer.main_ppo>
       verl-mas check --schema [the same arguments, to list the settings of their workflow, too]
"""
SERVING = {"together": "engines awake together", "phases": "engines awake one policy at a time"}


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if "--schema" in argv:
        return _schema([item for item in argv if item != "--schema"])
    report = examine_command(argv)
    out = console()
    if report.accepted and report.config and report.mas:
        out.print(tree(report.config, report.mas))
    out.print(report.problems, style="green" if report.accepted else "red", markup=False, highlight=False)
    return 0 if report.accepted else 1


def _schema(overrides: list[str]) -> int:
    """Print every setting of `mas:`, as the dataclasses declare it."""
    found = [*settings(MasConfig, "mas"), *settings(AdvantageOptions, "mas.advantage"), *settings(Options, ENGINE)]
    if overrides:
        mas = load(compose(overrides).get("mas"))
        load_user_code(mas)
        found += settings(find(mas.workflow.name, mas.workflow.path), "mas.workflow.args")
    sys.stdout.write("".join(f"{setting}\n" for setting in found))
    return 0


def tree(config: DictConfig, mas: MasConfig) -> Tree:
    root = Tree(f"[bold]{mas.workflow.name}[/]")
    _agents(root.add("agents"), mas)
    _policies(root.add("policies"), config, mas)
    _pools(root.add("pools"), config, mas)
    _step(root.add("training step"), config, mas)
    return root


def _agents(branch: Tree, mas: MasConfig) -> None:
    for name, member in agents_of(mas).items():
        note = "" if member.trainable else " (its rows are left out of the loss)"
        branch.add(f"{name} acts on {member.spec.policy}{note}")


def _policies(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    for name, spec in mas.policies.items():
        branch.add(f"{name}: {_policy(config, mas, name, spec)}")


def _policy(config: DictConfig, mas: MasConfig, name: str, spec: PolicySpec) -> str:
    if spec.remote:
        return f"remote, {spec.remote.model} at {spec.remote.base_url}"
    model, engine = (policy_value(config, spec, key) for key in ("model.path", "rollout.name"))
    where = f"{model}, served by {engine} on pool {spec.pool}"
    if not spec.trainable:
        return f"frozen, {where}"
    rate = policy_value(config, spec, "actor.optim.lr")
    steps = _count(updates_per_step(config, mas, name), "optimiser step", "optimiser steps")
    return f"trained, {where}, learning rate {rate:g}, {steps} per training step"


def _pools(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    units = ("worker process", "worker processes") if config.trainer.device == CPU else ("GPU", "GPUs")
    for name, spec in mas.pools.items():
        shape, policies = pool_shape(config, mas, name), policies_on(mas, name)
        if policies:
            serving = f", {SERVING[spec.serving]}" if len(policies) > 1 else ""
            nodes = f" on {len(shape)} nodes" if len(shape) > 1 else ""
            branch.add(f"{name}: {_count(sum(shape), *units)}{nodes}{serving}: {', '.join(policies)}")


def _step(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    tasks, n = int(config.data.train_batch_size), int(config[SECTION].rollout.n)
    sessions = sessions_per_step(config)
    branch.add(f"sessions: {tasks} tasks x {n} per task = {sessions}")
    branch.add(f"rows: {sessions} for each act that an agent makes once in every session")
    if resolve(mas.workflow).branches and mas.branch.k > 1:
        branch.add(
            f"rows where it branches: {sessions} x {mas.branch.k} candidates = {sessions * mas.branch.k} per act"
        )
    branch.add(f"advantages: {config.algorithm.adv_estimator}")


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
