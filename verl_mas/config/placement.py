"""Which policy lives on which GPUs, as arithmetic on the configuration. No process is touched here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import DictConfig, open_dict

from verl_mas.config.engine_tag import EngineTag
from verl_mas.config.merge import SECTION
from verl_mas.config.schema import DEFAULT_POOL, MasConfig
from verl_mas.errors import ConfigError


@dataclass(frozen=True)
class Resources:
    """What Ray counts."""

    gpus: float
    cpus: float


def require(want: Resources, have: Resources, who: str) -> Iterator[ConfigError]:
    """What a run reserves and Ray does not have. For an actor that cannot be placed verl waits indefinitely."""
    if have.gpus < want.gpus:
        yield ConfigError(
            f"{who} needs {want.gpus:g} GPUs, Ray has {have.gpus:g}",
            rule="every worker process has a GPU, or a share of one in its pool; on the CPU they are only counted",
            fix="lower trainer.n_gpus_per_node (of a pool: mas.pools.<pool>.n_gpus_per_node); on the CPU, or to check "
            f"for another machine, set ++ray_kwargs.ray_init.num_gpus={want.gpus:g}",
        )
    if have.cpus < want.cpus:
        yield ConfigError(
            f"{who} reserves {want.cpus:g} Ray CPUs, Ray has {have.cpus:g}",
            rule="every worker process reserves one, and so does every unit of TransferQueue",
            fix=f"set ++ray_kwargs.ray_init.num_cpus={want.cpus:g} (a count for scheduling, not cores), or lower "
            "transfer_queue.backend.SimpleStorage.num_data_storage_units",
        )


def pool_shape(config: DictConfig, mas: MasConfig, pool: str) -> list[int]:
    """GPUs on each node of a pool."""
    spec = mas.pools[pool]
    nodes = spec.nnodes or (config.trainer.nnodes if pool == DEFAULT_POOL else 1)
    gpus = spec.n_gpus_per_node or config.trainer.n_gpus_per_node
    return [int(gpus)] * int(nodes)


def policies_on(mas: MasConfig, pool: str) -> list[str]:
    """The policies that live in a pool; a remote policy lives nowhere."""
    return [name for name, spec in mas.policies.items() if spec.pool == pool and not spec.remote]


def slots(mas: MasConfig, pool: str) -> int:
    """Into how many shares each GPU of the pool is cut.

    One more than there are policies: Ray rounds shares to four digits, and n rounded n-ths may exceed the whole.
    """
    return len(policies_on(mas, pool)) + 1


def used_pools(mas: MasConfig) -> list[str]:
    return [pool for pool in mas.pools if policies_on(mas, pool)]


def time_sliced(mas: MasConfig, pool: str) -> bool:
    return mas.pools[pool].serving == "phases" and len(policies_on(mas, pool)) > 1


def gpus_needed(config: DictConfig, mas: MasConfig) -> int:
    gpus = sum(sum(pool_shape(config, mas, pool)) for pool in used_pools(mas))
    model = config.reward.reward_model
    return gpus + (model.n_gpus_per_node * model.nnodes if model.enable_resource_pool else 0)


def cpus_needed(config: DictConfig, mas: MasConfig) -> int:
    """A CPU per share of every GPU, one a TransferQueue storage unit, one for its controller, one to place the rest."""
    shares = sum(sum(pool_shape(config, mas, pool)) * slots(mas, pool) for pool in used_pools(mas))
    return shares + config.transfer_queue.backend.SimpleStorage.num_data_storage_units + 2


def apply_placement(view: DictConfig, mas: MasConfig, name: str) -> None:
    """Writes into a policy's view what follows from its place."""
    spec = mas.policies[name]
    shape, neighbours = pool_shape(view, mas, spec.pool), policies_on(mas, spec.pool)
    EngineTag(name, rank_offset(view, mas, name), time_sliced(mas, spec.pool)).write(view)
    with open_dict(view):
        view.trainer.nnodes, view.trainer.n_gpus_per_node = len(shape), shape[0]
        view[SECTION].rollout.n_gpus_per_node = shape[0]
        if len(neighbours) > 1 and mas.pools[spec.pool].offload and view.trainer.device != "cpu":
            _offload(view)


def rank_offset(config: DictConfig, mas: MasConfig, name: str) -> int:
    """Where a policy's replicas start to be numbered, so that no two policies share a server's name or socket.

    A multiple of the GPUs of every node: engines find their GPU by the rank modulo those.
    """
    names = [n for n, spec in mas.policies.items() if not spec.remote]
    stride = math.lcm(*(sum(pool_shape(config, mas, pool)) for pool in used_pools(mas)))
    return names.index(name) * stride


def _offload(view: DictConfig) -> None:
    for role in ("actor", "ref"):
        for key in ("fsdp_config", "megatron", "veomni", "torchtitan"):
            engine = view[SECTION][role].get(key)
            if engine is None:
                continue
            engine.param_offload = True
            if role == "actor":
                engine.optimizer_offload = True
