"""The resource pools of a run.

A pool is one verl resource pool. Each of its policies has processes of its own on every GPU of the pool, so that a
crash or a leak in one policy does not affect another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from omegaconf import DictConfig

from verl_mas.config.placement import Resources, pool_shape, require, slots, used_pools
from verl_mas.config.schema import MasConfig
from verl_mas.errors import raise_all

if TYPE_CHECKING:
    from verl.single_controller.ray import RayResourcePool, ResourcePoolManager

T = TypeVar("T")


class Pools:
    """The resource pools of a run, made once and shared by the policies placed on them."""

    def __init__(self, config: DictConfig, mas: MasConfig):
        self.mas = mas
        self._managers = {pool: _manager(config, mas, pool) for pool in used_pools(mas)}
        self.n_gpus = sum(manager.get_n_gpus() for manager in self._managers.values())

    def create(self) -> None:
        """Reserves the GPUs of every pool; raises ConfigError where the cluster has too few."""
        _check_cluster(self._managers.values(), self.n_gpus)
        for manager in self._managers.values():
            manager.create_resource_pool()

    def of(self, name: str) -> RayResourcePool:
        """The resource pool on which a policy is placed."""
        pool = self.mas.policies[name].pool
        return self._managers[pool].resource_pool_dict[pool]

    def each(self, names: Iterable[str], work: Callable[[str], T]) -> dict[str, T]:
        """Work on every policy: pools at the same time, the policies of a pool one after the other."""
        by_pool: dict[str, list[str]] = {}
        for name in names:
            by_pool.setdefault(self.mas.policies[name].pool, []).append(name)
        if len(by_pool) <= 1:
            return {name: work(name) for name in names}
        with ThreadPoolExecutor(len(by_pool), thread_name_prefix="pool") as executor:
            lanes = [executor.submit(_in_turn, lane, work) for lane in by_pool.values()]
            done = {name: result for lane in lanes for name, result in lane.result().items()}
        return {name: done[name] for name in names}


def _in_turn(names: list[str], work: Callable[[str], T]) -> dict[str, T]:
    return {name: work(name) for name in names}


def _manager(config: DictConfig, mas: MasConfig, pool: str) -> ResourcePoolManager:
    from verl.single_controller.ray import ResourcePoolManager

    return ResourcePoolManager(
        resource_pool_spec={pool: pool_shape(config, mas, pool)}, mapping={}, max_colocate_count=slots(mas, pool)
    )


def _check_cluster(managers: Iterable[ResourcePoolManager], gpus: int) -> None:
    """verl checks one pool at a time; two that fit alone may not fit together."""
    import ray

    found: dict[str, float] = ray.cluster_resources()
    have = Resources(found.get("GPU", 0) or found.get("NPU", 0), found.get("CPU", 0))
    want = Resources(gpus, sum(manager.get_n_gpus() * manager.max_colocate_count for manager in managers))
    raise_all(require(want, have, "the team"))
