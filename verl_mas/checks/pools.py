"""What is refused of the pools: GPUs and CPUs that will not be there, replicas and memory that do not fit."""

from __future__ import annotations

from omegaconf import DictConfig

from verl_mas.checks.machine import available
from verl_mas.config.merge import policy_value
from verl_mas.config.placement import cpus_needed, gpus_needed, policies_on, pool_shape
from verl_mas.config.schema import DEFAULT_POOL, MasConfig
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest


def check_pools(config: DictConfig, mas: MasConfig) -> None:
    for name, spec in mas.policies.items():
        if spec.pool not in mas.pools:
            raise ConfigError(
                f"mas.policies.{name}.pool={spec.pool}",
                rule="a policy lives on one of mas.pools",
                fix=nearest(spec.pool, list(mas.pools)),
            )
    for pool in mas.pools:
        if pool != DEFAULT_POOL and not policies_on(mas, pool):
            raise ConfigError(
                f"mas.pools.{pool} has no policy",
                rule="a pool reserves its GPUs for the whole run",
                fix=f"set ++mas.policies.<policy>.pool={pool}, or remove the pool",
            )
    for name, spec in mas.policies.items():
        if not spec.remote:
            _fits(config, mas, name, sum(pool_shape(config, mas, spec.pool)))
    _cluster(config, mas)


def _fits(config: DictConfig, mas: MasConfig, name: str, gpus: int) -> None:
    rollout = "rollout.{}_parallel_size"
    parts = {
        kind: int(policy_value(config, mas.policies[name], rollout.format(kind)))
        for kind in ("tensor_model", "data", "pipeline_model")
    }
    replica = parts["tensor_model"] * parts["data"] * parts["pipeline_model"]
    if gpus % replica:
        raise ConfigError(
            f"policy {name}: an engine replica of {replica} GPUs on a pool of {gpus}",
            rule="tensor x data x pipeline parallel size divides the GPUs of the pool",
            fix=f"change mas.pools.{mas.policies[name].pool}, or "
            f"mas.policies.{name}.overrides.rollout.tensor_model_parallel_size",
        )


def _cluster(config: DictConfig, mas: MasConfig) -> None:
    """verl's actors wait for ever, without a message, for resources that will never be there."""
    have = available(config)
    if have is None:
        return
    gpus, cpus = gpus_needed(config, mas), cpus_needed(config, mas)
    if have.gpus < gpus:
        raise ConfigError(
            f"the pools ask for {gpus} GPUs, Ray will have {have.gpus:g}",
            rule="every pool has GPUs of its own",
            fix="lower mas.pools.<pool>.n_gpus_per_node, put the policies on one pool, or on a CPU set "
            f"++ray_kwargs.ray_init.num_gpus={gpus}",
        )
    if have.cpus < cpus:
        raise ConfigError(
            f"the team reserves {cpus} Ray CPUs, Ray will have {have.cpus:g}",
            rule="every worker process of every policy reserves one, and so do TransferQueue and the agent loops",
            fix=f"set ray_kwargs.ray_init.num_cpus={cpus} (they need not be real)",
        )


def check_memory(config: DictConfig, mas: MasConfig) -> None:
    for pool, spec in mas.pools.items():
        names = [n for n in policies_on(mas, pool) if facts_of(_engine(config, mas, n)).gpu_fraction]
        fractions = {n: float(policy_value(config, mas.policies[n], "rollout.gpu_memory_utilization")) for n in names}
        if spec.serving == "phases":
            _can_sleep(config, mas, names)
        elif sum(fractions.values()) > 1 + 1e-9:
            shown = " + ".join(f"{n} {f:g}" for n, f in fractions.items())
            raise ConfigError(
                f"pool {pool}: gpu_memory_utilization {shown} = {sum(fractions.values()):g}",
                rule="engines that are awake together share the GPU's memory, so the fractions add up to at most 1",
                fix="lower ++mas.policies.<policy>.overrides.rollout.gpu_memory_utilization, or set "
                f"++mas.pools.{pool}.serving=phases",
            )


def _can_sleep(config: DictConfig, mas: MasConfig, names: list[str]) -> None:
    for name in names:
        if not policy_value(config, mas.policies[name], "rollout.free_cache_engine"):
            raise ConfigError(
                f"policy {name}: rollout.free_cache_engine=False in a pool served in phases",
                rule="an engine that keeps its memory cannot make room for the next one",
                fix="set rollout.free_cache_engine=True, or serving=together",
            )


def _engine(config: DictConfig, mas: MasConfig, name: str) -> str:
    return str(policy_value(config, mas.policies[name], "rollout.name"))
