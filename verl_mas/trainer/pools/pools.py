"""The resource pools of a run.

A pool is one verl resource pool. Each of its policies has processes of its own on every GPU of the pool, so that a
crash or a leak in one policy does not affect another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from omegaconf import DictConfig

from verl_mas.config.placement import CPUS_PER_GPU, pool_shape, reward_shape, serving_pool, slots, used_pools
from verl_mas.config.schema import MasConfig
from verl_mas.trainer.pools.placing import nodes_of, place

if TYPE_CHECKING:
    from verl.single_controller.ray import RayResourcePool

T = TypeVar("T")


class Pools:
    """The resource pools of a run, made once and shared by the policies placed on them."""

    def __init__(self, config: DictConfig, mas: MasConfig):
        self.mas = mas
        self._pools = {pool: _pool(pool, pool_shape(config, mas, pool), slots(mas, pool)) for pool in used_pools(mas)}
        shape = reward_shape(config)
        self.reward = _pool("reward_pool", shape, CPUS_PER_GPU) if shape else None
        self.n_gpus: int = sum(pool.world_size for pool in self._pools.values())

    def create(self) -> None:
        """Reserves the GPUs of every pool; raises ConfigError where the cluster has too few."""
        place(self._all)

    def of(self, name: str) -> RayResourcePool:
        """The resource pool on which a policy is placed; of one that is served elsewhere, its training processes."""
        return self._pools[self.mas.policies[name].pool]

    def serving(self, name: str) -> RayResourcePool:
        """The resource pool with the engines of a policy."""
        return self._pools[serving_pool(self.mas, name)]

    @property
    def nodes(self) -> set[str]:
        """The ids of the nodes with a pool."""
        return nodes_of(self._all)

    @property
    def _all(self) -> list[RayResourcePool]:
        return [*self._pools.values(), *([self.reward] if self.reward else [])]

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


def _pool(name: str, shape: list[int], cpus: int) -> RayResourcePool:
    from verl.single_controller.ray import RayResourcePool

    return RayResourcePool(process_on_nodes=shape, max_colocate_count=cpus, name_prefix=name)
