"""Checks a team's configuration without starting anything, and shows what it comes to."""

from __future__ import annotations

import sys

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.tree import Tree

from verl_mas.checks.run import check_team
from verl_mas.config.compose import compose as compose_config
from verl_mas.config.load import load
from verl_mas.config.merge import SECTION, finalize, policy_value, sessions_per_step, updates_per_step
from verl_mas.config.placement import policies_on, pool_shape
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.errors import ConfigError
from verl_mas.workflow.base import agents_of

USAGE = "usage: verl-mas check <what you would give python -m verl.trainer.main_ppo>\n"


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    config = compose(argv)
    finalize(config, load(config.get("mas")))
    mas = check_team(config)
    Console().print(tree(config, mas))
    return 0


def compose(overrides: list[str]) -> DictConfig:
    from hydra.errors import HydraException

    try:
        return compose_config(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(
            str(error).splitlines()[0],
            rule="Hydra composes the overrides over verl's configuration",
            fix="++ before a key sets it whether or not it is there; see docs/configuration.md",
        ) from error


def tree(config: DictConfig, mas: MasConfig) -> Tree:
    root = Tree(f"[bold]{mas.workflow.name}[/]")
    _agents(root.add("agents"), config, mas)
    _policies(root.add("policies"), config, mas)
    _pools(root.add("pools"), config, mas)
    _groups(root.add("groups"), config, mas)
    return root


def _agents(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    for name, member in agents_of(mas).items():
        note = "" if member.trainable else ", left out of the loss"
        branch.add(f"{name} -> {member.spec.policy}{note}")


def _policies(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    for name, spec in mas.policies.items():
        branch.add(f"{name}: {_policy(config, mas, name, spec)}")


def _policy(config: DictConfig, mas: MasConfig, name: str, spec: PolicySpec) -> str:
    if spec.remote:
        return f"remote, {spec.remote['model']} at {spec.remote['base_url']}"
    model, engine = (policy_value(config, spec, key) for key in ("model.path", "rollout.name"))
    where = f"{model}, served by {engine} on pool {spec.pool}"
    if not spec.trainable:
        return f"frozen, {where}"
    steps = updates_per_step(config, mas, name)
    rate = policy_value(config, spec, "actor.optim.lr")
    return f"trained, {where}, lr {rate:g}, {steps} optimiser step{'s' if steps > 1 else ''} a step"


def _pools(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    for name, spec in mas.pools.items():
        shape = pool_shape(config, mas, name)
        living = policies_on(mas, name)
        if living:
            branch.add(f"{name}: {len(shape)} x {shape[0]} GPUs, {spec.serving}: {', '.join(living)}")


def _groups(branch: Tree, config: DictConfig, mas: MasConfig) -> None:
    tasks, n = int(config.data.train_batch_size), int(config[SECTION].rollout.n)
    branch.add(f"{config.algorithm.adv_estimator}: {tasks} tasks x {n} sessions = {sessions_per_step(config)} a step")
    branches = f", {mas.branch.k} where it branches" if mas.branch.k > 1 else ""
    branch.add(f"rows a step: {sessions_per_step(config)} for each act that an agent makes in a session{branches}")
