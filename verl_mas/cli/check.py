"""Checks a team's configuration without starting anything, and shows what it comes to."""

from __future__ import annotations

import sys

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.tree import Tree

from verl_mas.advantage.options import AdvantageOptions
from verl_mas.checks.run import check_team
from verl_mas.config.compose import compose as compose_config
from verl_mas.config.describe import settings
from verl_mas.config.load import load
from verl_mas.config.merge import SECTION, finalize, policy_value, sessions_per_step, updates_per_step
from verl_mas.config.placement import policies_on, pool_shape
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.engines.transformers.options import PATH as ENGINE
from verl_mas.engines.transformers.options import Options
from verl_mas.errors import ConfigError
from verl_mas.user_code import load_user_code
from verl_mas.workflow.base import agents_of, find

USAGE = """usage: verl-mas check <what you would give python -m verl.trainer.main_ppo>
       verl-mas check --schema [the same: the settings of the workflow that it names are listed, too]
"""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if "--schema" in argv:
        return _schema([item for item in argv if item != "--schema"])
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


def _schema(overrides: list[str]) -> int:
    """Every setting that users may write, as the dataclasses declare it."""
    found = [*settings(MasConfig, "mas"), *settings(AdvantageOptions, "mas.advantage"), *settings(Options, ENGINE)]
    if overrides:
        mas = load(compose(overrides).get("mas"))
        load_user_code(mas)
        found += settings(find(mas.workflow.name, mas.workflow.path), "mas.workflow.args")
    sys.stdout.write("".join(f"{setting}\n" for setting in found))
    return 0


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
        return f"remote, {spec.remote.model} at {spec.remote.base_url}"
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
