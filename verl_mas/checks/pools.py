"""Checks of the pools: GPUs and CPUs that Ray will not have, replicas and memory that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION, own_section
from verl_mas.config.modes import KEY, SEPARATE
from verl_mas.config.placement import local_policies, policies_on, pool_shape, replica_size, served_on, serving_pool
from verl_mas.config.run import Run
from verl_mas.config.schema import DEFAULT_POOL, MasConfig
from verl_mas.engines.facts import facts_of
from verl_mas.engines.serving import MOST, lowered
from verl_mas.errors import ConfigError
from verl_mas.platform import DEVICE as CPU
from verl_mas.registry import nearest

# Checks of policies that are trained on one pool and served on another: `mas.policies.<policy>.engines`.


def check_apart(run: Run) -> Iterator[ConfigError]:
    """Of a team whose pools exist."""
    if run.mode is not SEPARATE:
        return
    training = {run.mas.policies[name].pool: name for name in run.trained if not run.mas.policies[name].adapter_of}
    for name in local_policies(run.mas):
        spec = run.mas.policies[name]
        setting, pool = ("engines", spec.engines) if spec.engines else ("pool", spec.pool)
        of_itself = spec.is_trained and pool == spec.pool
        if pool in training and not of_itself:
            value = f"mas.policies.{name}.{setting}={pool}, on which policy {training[pool]} trains"
            rule = f"with {KEY}={SEPARATE.name} engines never free their GPUs for training"
            fix = f"set ++mas.policies.{name}.{setting} to a pool on which no policy trains"
            yield ConfigError(value, rule=rule, fix=fix)


TENSOR_SIZE = "rollout.tensor_model_parallel_size"
# What the fraction is a share of, and why not all of the GPU.
MEANINGS = (
    "vLLM takes its fraction of the whole GPU; SGLang takes its fraction of what is free when it starts, and CUDA "
    "graphs beside it. Contexts and trainers take the rest"
)


def check_pools(mas: MasConfig) -> Iterator[ConfigError]:
    for name, spec in mas.policies.items():
        for setting, pool in (("pool", spec.pool), ("engines", spec.engines)):
            if pool is not None and pool not in mas.pools:
                value = f"mas.policies.{name}.{setting}={pool}"
                yield ConfigError(value, rule="a policy is on one of mas.pools", fix=nearest(pool, list(mas.pools)))
    for pool in mas.pools:
        if pool != DEFAULT_POOL and not policies_on(mas, pool):
            value = f"mas.pools.{pool} has no policy"
            rule = "a pool reserves its GPUs for the whole run"
            yield ConfigError(value, rule=rule, fix=f"set ++mas.policies.<policy>.pool={pool}, or remove the pool")


def check_replicas(run: Run) -> Iterator[ConfigError]:
    for name in local_policies(run.mas):
        replica, gpus = replica_size(run, name), sum(pool_shape(run, serving_pool(run.mas, name)))
        if gpus % replica:
            yield ConfigError(
                f"policy {name}: an engine replica of {replica} GPUs on a pool of {gpus}",
                rule="tensor x data x pipeline parallel size divides the GPUs of the pool; verl's default is a tensor "
                "parallel size of 2",
                fix=f"set {_tensor_size(run, name, gpus)}, or give the pool a multiple of {replica} GPUs",
            )


def _tensor_size(run: Run, name: str, gpus: int) -> str:
    """The setting with the largest size that fits, where the policy has it."""
    view = run.view(name)
    size = int(view.value(TENSOR_SIZE))
    others = replica_size(run, name) // size
    fits = next((n for n in range(size, 0, -1) if gpus % (n * others) == 0), 1)
    own = OmegaConf.select(OmegaConf.create(view.spec.overrides), TENSOR_SIZE) is not None
    return f"{own_section(run.config, name) if own else SECTION}.{TENSOR_SIZE}={fits}"


def check_memory(run: Run) -> Iterator[ConfigError]:
    for pool, spec in run.mas.pools.items():
        names = [n for n in served_on(run.mas, pool) if facts_of(run.view(n).engine).gpu_fraction]
        fractions = {n: float(run.view(n).value("rollout.gpu_memory_utilization")) for n in names}
        # One policy alone may take what verl lets it take; on the CPU nothing of a trainer is on the engines' device.
        most = MOST if len(names) > 1 and run.config.trainer.device != CPU else 1.0
        if spec.serving == "phases":
            yield from _in_phases(run, fractions, most)
        elif sum(fractions.values()) > most + 1e-9:
            yield _too_large_together(run.config, pool, fractions, most)


def _too_large_together(config: DictConfig, pool: str, fractions: Mapping[str, float], most: float) -> ConfigError:
    whole, fitting = sum(fractions.values()), lowered(list(fractions.values()), most)
    return ConfigError(
        f"pool {pool}: gpu_memory_utilization {' + '.join(f'{n} {f:g}' for n, f in fractions.items())} = {whole:g}",
        rule=f"the fractions of engines that are awake together add up to at most {most:g}. {MEANINGS}",
        fix="set "
        + " ".join(_fraction(config, name, value) for name, value in zip(fractions, fitting, strict=True))
        + f", or ++mas.pools.{pool}.serving=phases",
    )


def _fraction(config: DictConfig, name: str, value: float) -> str:
    return f"{own_section(config, name)}.rollout.gpu_memory_utilization={value:g}"


def _in_phases(run: Run, fractions: Mapping[str, float], most: float) -> Iterator[ConfigError]:
    for name, fraction in fractions.items():
        if not run.view(name).value("rollout.free_cache_engine"):
            value = f"policy {name}: rollout.free_cache_engine=False in a pool served in phases"
            fix = f"set {own_section(run.config, name)}.rollout.free_cache_engine=True, or serve the pool together"
            yield ConfigError(value, rule="in phases, each engine frees its memory for the next one", fix=fix)
        if fraction > most + 1e-9:
            value = f"policy {name}: gpu_memory_utilization={fraction:g} in a pool served in phases"
            fix = f"set {_fraction(run.config, name, most)}"
            yield ConfigError(value, rule=f"it is at most {most:g}. {MEANINGS}", fix=fix)
