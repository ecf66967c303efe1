"""Everything about a team's configuration that can be known wrong before Ray starts.

Each rule is a function that raises ConfigError; `validate` runs them all in order.
"""

from __future__ import annotations

import re

from omegaconf import DictConfig

from verl_mas.advantage import options_for
from verl_mas.checks.policies import (
    check_batch_sizes,
    check_overrides,
    check_remotes,
    check_verl_accepts,
    check_zero_advantage,
)
from verl_mas.checks.pools import check_memory, check_pools
from verl_mas.checks.trainer import check_trainer
from verl_mas.config.load import load
from verl_mas.config.merge import SECTION
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest
from verl_mas.user_code import load_user_code
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.commit import COMMIT_RULES

AGENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# First parts of metric names that are no agent's and no policy's.
RESERVED = {"session", "rows", "timing", "group", "padding"}


def validate(config: DictConfig) -> MasConfig:
    """The team, if verl and this plugin can run it; else ConfigError with the value, the rule and the way out."""
    mas = load(config.get("mas"))
    load_user_code(mas)
    _names(mas)
    _assignment(mas)
    check_remotes(mas)
    check_pools(config, mas)
    check_overrides(config, mas)
    check_trainer(config, mas)
    _estimator(config, mas)
    COMMIT_RULES.find(mas.branch.commit, "mas.branch.commit")
    _own_rewards(mas)
    check_batch_sizes(config, mas)
    check_memory(config, mas)
    check_zero_advantage(config, mas)
    check_verl_accepts(config, mas)
    return mas


def _names(mas: MasConfig) -> None:
    for noun, names in (("agent", mas.agents), ("policy", mas.policies), ("pool", mas.pools)):
        for name in names:
            if not AGENT_NAME.fullmatch(name) or name in RESERVED:
                raise ConfigError(
                    f"{noun} name {name!r}",
                    rule="names are part of metric names, file names and actor names: a letter, then letters, "
                    f"digits, '_' or '-', and none of {', '.join(sorted(RESERVED))}",
                    fix=f"rename the {noun}",
                )


def _assignment(mas: MasConfig) -> None:
    members = agents_of(mas)
    for name, member in members.items():
        policy = member.spec.policy
        if policy not in mas.policies:
            raise ConfigError(
                f"agent {name} acts on policy {policy}",
                rule="an agent acts on one of mas.policies",
                fix=f"set ++mas.agents.{member.role}.policy; {nearest(policy, list(mas.policies))}",
            )
    used = {member.spec.policy for member in members.values()}
    for name in mas.policies:
        if name not in used:
            raise ConfigError(
                f"mas.policies.{name} is used by no agent",
                rule="every policy costs memory, so every policy has an agent",
                fix=f"set ++mas.agents.<agent>.policy={name}, or remove the policy",
            )


def _estimator(config: DictConfig, mas: MasConfig) -> None:
    name = str(config.algorithm.adv_estimator)
    options_for(name, mas.advantage)
    if name == "at_grpo":
        _branches(config, mas)


def _branches(config: DictConfig, mas: MasConfig) -> None:
    workflow = resolve(mas.workflow)
    if not workflow.branches:
        raise ConfigError(
            f"algorithm.adv_estimator=at_grpo with mas.workflow.name={mas.workflow.name}, which never branches",
            rule="at_grpo compares the candidates of one act",
            fix="algorithm.adv_estimator=agent_grpo; or, in a workflow of yours that calls `branch`, say "
            "`branches = True` in its class",
        )
    if mas.branch.k == 1 and config[SECTION].rollout.n == 1:
        raise ConfigError(
            "algorithm.adv_estimator=at_grpo with mas.branch.k=1 and one session a task",
            rule="at_grpo compares the candidates of one act, or without branching the sessions of a task",
            fix=f"set mas.branch.k=4, or {SECTION}.rollout.n=8 for the control without branching",
        )


def _own_rewards(mas: MasConfig) -> None:
    workflow = resolve(mas.workflow)
    for name in workflow.own_rewards:
        if getattr(workflow, name) and not mas.reward.local:
            raise ConfigError(
                f"mas.workflow.args.{name}={getattr(workflow, name)} with mas.reward.local={mas.reward.local}",
                rule="an act's own reward counts with the weight mas.reward.local (preset dr_mas: 0)",
                fix=f"set mas.reward.preset=sum, or ++mas.workflow.args.{name}=0",
            )
