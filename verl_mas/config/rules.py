"""Everything about a team's configuration that can be known wrong before Ray starts.

Each rule is a function that raises ConfigError; `validate` runs them all in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.config.load import load
from verl_mas.config.merge import SECTION, members, policy_value, policy_view, pool_shape, updates_per_step
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

if TYPE_CHECKING:
    from verl_mas.workflow.roster import Member

TRAINER_MODE = "mas"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# First parts of metric names that are no agent's and no policy's.
RESERVED = {"session", "rows", "timing", "group", "padding"}
REMOTE_KEYS = {"base_url": str, "model": str, "api_key_env": str, "timeout": (int, float)}
# Engines that take a fraction of the GPU when they start.
TAKES_FRACTION = {"vllm", "sglang", "trtllm"}
# Losses in which a row of zero advantage adds exactly zero, and which scale with the advantage.
PROPORTIONAL_LOSSES = {"vanilla", "gspo", "sapo", "gpg"}


def validate(config: DictConfig) -> MasConfig:
    """The team, if verl and this plugin can run it; else ConfigError with the value, the rule and the way out."""
    team = load(config.get("mas"))
    _names(team)
    _assignment(team)
    _remotes(team)
    _pools(config, team)
    _overrides(config, team)
    _trainer(config, team)
    _estimator(config, team)
    _own_rewards(team)
    _batch_sizes(config, team)
    _memory(config, team)
    _zero_advantage(config, team)
    _verl(config, team)
    return team


def trained(team: MasConfig) -> list[str]:
    """The policies that are updated."""
    return [name for name, spec in team.policies.items() if spec.trainable and not spec.remote]


def _names(team: MasConfig) -> None:
    for noun, names in (("agent", team.agents), ("policy", team.policies), ("pool", team.pools)):
        for name in names:
            if not NAME.fullmatch(name) or name in RESERVED:
                raise ConfigError(
                    f"{noun} name {name!r}",
                    rule="names are part of metric names, file names and actor names: a letter, then letters, "
                    f"digits, '_' or '-', and none of {', '.join(sorted(RESERVED))}",
                    way_out=f"rename the {noun}",
                )


def agents_of(team: MasConfig) -> dict[str, Member]:
    """Every agent of the workflow, with its settings."""
    # The workflow package reads this package's schema.
    from verl_mas.workflow.base import resolve
    from verl_mas.workflow.roster import roster

    workflow = resolve(team.workflow)
    if not workflow.agents:
        raise ConfigError(
            f"workflow {team.workflow.name} has no agents",
            rule="a team has at least one agent",
            way_out="name them in the workflow's `agents`",
        )
    return roster(workflow.agents, team.agents, team.policies)


def _assignment(team: MasConfig) -> None:
    members = agents_of(team)
    for name, member in members.items():
        policy = member.spec.policy
        if policy not in team.policies:
            raise ConfigError(
                f"agent {name} acts on policy {policy}",
                rule="an agent acts on one of mas.policies",
                way_out=f"set ++mas.agents.{member.role}.policy; {nearest(policy, list(team.policies))}",
            )
    used = {member.spec.policy for member in members.values()}
    for name in team.policies:
        if name not in used:
            raise ConfigError(
                f"mas.policies.{name} is used by no agent",
                rule="every policy costs memory, so every policy has an agent",
                way_out=f"set ++mas.agents.<agent>.policy={name}, or remove the policy",
            )


def _remotes(team: MasConfig) -> None:
    for name, spec in team.policies.items():
        if spec.remote is None:
            continue
        path = f"mas.policies.{name}.remote"
        for key, value in spec.remote.items():
            if key not in REMOTE_KEYS:
                raise ConfigError(f"{path}.{key}", rule="no such setting", way_out=nearest(str(key), list(REMOTE_KEYS)))
            if value is not None and not isinstance(value, REMOTE_KEYS[key]):  # type: ignore[arg-type]
                raise ConfigError(f"{path}.{key}={value!r}", rule="wrong type", way_out="write text, or seconds")
        for key in ("base_url", "model"):
            if not spec.remote.get(key):
                raise ConfigError(
                    f"{path} has no {key}",
                    rule="a remote policy is an OpenAI-compatible endpoint and a model name there",
                    way_out=f"set ++{path}.{key}",
                )
        variable = spec.remote.get("api_key_env")
        if variable and variable not in os.environ:
            raise ConfigError(
                f"{path}.api_key_env={variable}",
                rule="the key is read from that environment variable, and it is not set",
                way_out=f"export {variable}=...",
            )
        if spec.overrides:
            raise ConfigError(
                f"mas.policies.{name}.overrides with remote",
                rule="a remote policy has no model, engine or optimiser here",
                way_out="remove the overrides; sampling belongs to mas.agents.<agent>.sampling",
            )


def _pools(config: DictConfig, team: MasConfig) -> None:
    for name, spec in team.policies.items():
        if spec.pool not in team.pools:
            raise ConfigError(
                f"mas.policies.{name}.pool={spec.pool}",
                rule="a policy lives on one of mas.pools",
                way_out=nearest(spec.pool, list(team.pools)),
            )
    for pool in team.pools:
        if pool != "shared" and not members(team, pool):
            raise ConfigError(
                f"mas.pools.{pool} has no policy",
                rule="a pool reserves its GPUs for the whole run",
                way_out=f"set ++mas.policies.<policy>.pool={pool}, or remove the pool",
            )
    for name, spec in team.policies.items():
        if not spec.remote:
            _fits(config, team, name, sum(pool_shape(config, team, spec.pool)))
    _cluster(config, team)


def _fits(config: DictConfig, team: MasConfig, name: str, gpus: int) -> None:
    rollout = "rollout.{}_parallel_size"
    parts = {
        kind: int(policy_value(config, team.policies[name], rollout.format(kind)))
        for kind in ("tensor_model", "data", "pipeline_model")
    }
    replica = parts["tensor_model"] * parts["data"] * parts["pipeline_model"]
    if gpus % replica:
        raise ConfigError(
            f"policy {name}: an engine replica of {replica} GPUs on a pool of {gpus}",
            rule="tensor x data x pipeline parallel size divides the GPUs of the pool",
            way_out=f"change mas.pools.{team.policies[name].pool}, or "
            f"mas.policies.{name}.overrides.rollout.tensor_model_parallel_size",
        )


def _cluster(config: DictConfig, team: MasConfig) -> None:
    """verl's actors wait for ever, without a message, for resources that will never be there."""
    from verl_mas import preflight
    from verl_mas.trainer.pools import cpus_needed, gpus_needed

    have = preflight.available(config)
    if have is None:
        return
    gpus, cpus = gpus_needed(config, team), cpus_needed(config, team)
    if have.gpus < gpus:
        raise ConfigError(
            f"the pools ask for {gpus} GPUs, Ray will have {have.gpus:g}",
            rule="every pool has GPUs of its own",
            way_out="lower mas.pools.<pool>.n_gpus_per_node, put the policies on one pool, or on a CPU set "
            f"++ray_kwargs.ray_init.num_gpus={gpus}",
        )
    if have.cpus < cpus:
        raise ConfigError(
            f"the team reserves {cpus} Ray CPUs, Ray will have {have.cpus:g}",
            rule="every worker process of every policy reserves one, and so do TransferQueue and the agent loops",
            way_out=f"set ray_kwargs.ray_init.num_cpus={cpus} (they need not be real)",
        )


def _overrides(config: DictConfig, team: MasConfig) -> None:
    for name, spec in team.policies.items():
        _known_keys(config[SECTION], spec.overrides, f"mas.policies.{name}.overrides")


def _known_keys(node: Any, overrides: dict[str, Any], path: str) -> None:
    """A part that verl types is closed; a part that it passes on (engine_kwargs, override_config) is free."""
    target = node.get("_target_")
    if target is None and not path.endswith(".overrides"):
        return
    known = {str(key) for key in node} | _fields(target)
    for key, value in overrides.items():
        if str(key) not in known:
            raise ConfigError(
                f"{path}.{key}", rule=f"verl has no such setting in {SECTION}", way_out=nearest(str(key), list(known))
            )
        below = OmegaConf.select(node, str(key)) if str(key) in node else None
        if isinstance(below, DictConfig) and len(below):
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{path}.{key}={value!r}", rule="this is a section, not a value", way_out=f"set {path}.{key}.<key>"
                )
            _known_keys(below, value, f"{path}.{key}")


def _fields(target: str | None) -> set[str]:
    if target is None:
        return set()
    module, _, name = target.rpartition(".")
    return {field.name for field in dataclasses.fields(getattr(importlib.import_module(module), name))}


def _trainer(config: DictConfig, team: MasConfig) -> None:
    mode = config.trainer.v1.trainer_mode
    for wrong, value, rule, way_out in (
        (mode != TRAINER_MODE, f"trainer.v1.trainer_mode={mode}", "a team is trained by mode mas", "use +mas=<team>"),
        (
            not config.trainer.use_v1,
            "trainer.use_v1=False",
            "teams need verl's V1 trainer",
            "remove that override",
        ),
        (
            not config[SECTION].hybrid_engine,
            f"{SECTION}.hybrid_engine=False",
            "policies train and serve on the same GPUs",
            f"set {SECTION}.hybrid_engine=True",
        ),
        (
            _wants_critic(config),
            f"algorithm.adv_estimator={config.algorithm.adv_estimator}, critic.enable={config.critic.enable}",
            "a critic would need one value model per policy; groups of sessions are the baseline here",
            "algorithm.adv_estimator=agent_grpo, and critic.enable unset",
        ),
        (
            bool(config.algorithm.use_kl_in_reward),
            "algorithm.use_kl_in_reward=True",
            "a reward is shared by agents on different policies, each with its own reference",
            f"set {SECTION}.actor.use_kl_loss=True (or per policy, in mas.policies.<policy>.overrides.actor)",
        ),
        (
            not config.algorithm.norm_adv_by_std_in_grpo,
            "algorithm.norm_adv_by_std_in_grpo=False",
            "a team's estimators read mas.advantage",
            "++mas.advantage.scale=none instead",
        ),
        (
            bool(OmegaConf.select(config, "distillation.enabled")),
            "distillation.enabled=True",
            "a teacher of a team is not supported",
            "distillation.enabled=False",
        ),
        (
            bool(config.reward.reward_model.enable and not config.reward.reward_model.enable_resource_pool),
            "reward.reward_model.enable=True on the policies' GPUs",
            "a session is scored when it ends, while the engines are awake",
            "reward.reward_model.enable_resource_pool=True with GPUs of its own",
        ),
        (
            not trained(team) and not config.trainer.val_only,
            "no policy is trainable",
            "training needs a policy with weights to train",
            "make a policy trainable, or set trainer.val_only=True",
        ),
    ):
        if wrong:
            raise ConfigError(value, rule=rule, way_out=way_out)


def _wants_critic(config: DictConfig) -> bool:
    return bool(config.critic.enable) or (config.critic.enable is None and config.algorithm.adv_estimator == "gae")


def _estimator(config: DictConfig, team: MasConfig) -> None:
    from verl_mas.advantage import options_for

    name = str(config.algorithm.adv_estimator)
    options_for(name, team.advantage)
    if name == "at_grpo":
        _branches(config, team)


def _branches(config: DictConfig, team: MasConfig) -> None:
    from verl_mas.workflow.base import resolve

    workflow = resolve(team.workflow)
    if not workflow.branches:
        raise ConfigError(
            f"algorithm.adv_estimator=at_grpo with mas.workflow.name={team.workflow.name}, which never branches",
            rule="at_grpo compares the candidates of one act",
            way_out="algorithm.adv_estimator=agent_grpo; or, in a workflow of yours that calls `branch`, say "
            "`branches = True` in its class",
        )
    if team.branch.k == 1 and config[SECTION].rollout.n == 1:
        raise ConfigError(
            "algorithm.adv_estimator=at_grpo with mas.branch.k=1 and one session a task",
            rule="at_grpo compares the candidates of one act, or without branching the sessions of a task",
            way_out=f"set mas.branch.k=4, or {SECTION}.rollout.n=8 for the control without branching",
        )


def _own_rewards(team: MasConfig) -> None:
    from verl_mas.workflow.base import resolve

    workflow = resolve(team.workflow)
    for name in workflow.own_rewards:
        if getattr(workflow, name) and not team.reward.local:
            raise ConfigError(
                f"mas.workflow.args.{name}={getattr(workflow, name)} with mas.reward.local={team.reward.local}",
                rule="an act's own reward counts with the weight mas.reward.local (preset dr_mas: 0)",
                way_out=f"set mas.reward.preset=sum, or ++mas.workflow.args.{name}=0",
            )


def _batch_sizes(config: DictConfig, team: MasConfig) -> None:
    sessions = sessions_per_step(config)
    for name in trained(team):
        steps = updates_per_step(config, team, name)
        if steps > sessions:
            raise ConfigError(
                f"policy {name}: {steps} optimiser steps on {sessions} sessions a step",
                rule="every optimiser step needs at least one row",
                way_out="lower mas.updates_per_step, or raise data.train_batch_size or rollout.n",
            )


def _memory(config: DictConfig, team: MasConfig) -> None:
    for pool, spec in team.pools.items():
        names = [n for n in members(team, pool) if _engine(config, team, n) in TAKES_FRACTION]
        fractions = {n: float(policy_value(config, team.policies[n], "rollout.gpu_memory_utilization")) for n in names}
        if spec.serving == "phases":
            _can_sleep(config, team, names)
        elif sum(fractions.values()) > 1 + 1e-9:
            shown = " + ".join(f"{n} {f:g}" for n, f in fractions.items())
            raise ConfigError(
                f"pool {pool}: gpu_memory_utilization {shown} = {sum(fractions.values()):g}",
                rule="engines that are awake together share the GPU's memory, so the fractions add up to at most 1",
                way_out="lower ++mas.policies.<policy>.overrides.rollout.gpu_memory_utilization, or set "
                f"++mas.pools.{pool}.serving=phases",
            )


def _can_sleep(config: DictConfig, team: MasConfig, names: list[str]) -> None:
    for name in names:
        if not policy_value(config, team.policies[name], "rollout.free_cache_engine"):
            raise ConfigError(
                f"policy {name}: rollout.free_cache_engine=False in a pool served in phases",
                rule="an engine that keeps its memory cannot make room for the next one",
                way_out="set rollout.free_cache_engine=True, or serving=together",
            )


def _engine(config: DictConfig, team: MasConfig, name: str) -> str:
    return str(policy_value(config, team.policies[name], "rollout.name"))


def _zero_advantage(config: DictConfig, team: MasConfig) -> None:
    if not team.skip_zero_advantage:
        return
    for name in trained(team):
        actor = policy_view(config, name, team.policies[name])[SECTION].actor
        for term, active in (
            ("actor.use_kl_loss=True", actor.use_kl_loss),
            (f"actor.entropy_coeff={actor.entropy_coeff}", actor.entropy_coeff != 0),
            (
                f"actor.policy_loss.loss_mode={actor.policy_loss.loss_mode}",
                actor.policy_loss.loss_mode not in PROPORTIONAL_LOSSES,
            ),
        ):
            if active:
                raise ConfigError(
                    f"mas.skip_zero_advantage=True with {term} of policy {name}",
                    rule="rows without advantage still count in that term of the loss",
                    way_out="set mas.skip_zero_advantage=False, or turn that term off",
                )


def _verl(config: DictConfig, team: MasConfig) -> None:
    """verl's own checks, on each policy's view."""
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import validate_config

    for name, spec in team.policies.items():
        if spec.remote:
            continue
        view = policy_view(config, name, spec)
        shape = pool_shape(config, team, spec.pool)
        view.trainer.nnodes, view.trainer.n_gpus_per_node = len(shape), shape[0]
        if view[SECTION].actor.checkpoint.get("async_save", False):
            raise ConfigError(
                f"policy {name}: actor.checkpoint.async_save=True",
                rule="the latest checkpoint is named when every policy has been saved",
                way_out="set actor.checkpoint.async_save=False",
            )
        with _blaming(name), contextlib.redirect_stdout(io.StringIO()):
            validate_config(view, use_reference_policy=need_reference_policy(view), use_critic=False)


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, AssertionError, TypeError, OmegaConfBaseException, HydraException) as error:
        raise ConfigError(
            f"policy {name}: {error}",
            rule="verl accepts the configuration of every policy",
            way_out=f"change {SECTION}, or mas.policies.{name}.overrides",
        ) from error


def sessions_per_step(config: DictConfig) -> int:
    """The rows of an agent that acts once a session."""
    return int(config.data.train_batch_size) * int(config[SECTION].rollout.n)
