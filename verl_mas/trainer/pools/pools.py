"""The resource pools of a run.

A pool is one verl resource pool. Each of its policies has processes of its own on every GPU of the pool, so that a
crash or a leak in one policy does not affect another.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from verl.plugin.platform import get_platform
from verl.single_controller.ray import RayResourcePool
from verl.single_controller.ray.base import sort_placement_group_by_node_ip

from verl_mas.config.placement import CPUS_PER_GPU, pool_shape, reward_shape, serving_pool, slots, used_pools
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError


class Pools:
    """The resource pools of a run, made once and shared by the policies placed on them."""

    def __init__(self, run: Run):
        self.mas = run.mas
        self._pools = {pool: _pool(pool, pool_shape(run, pool), slots(run.mas, pool)) for pool in used_pools(run.mas)}
        shape = reward_shape(run.config)
        self.reward = _pool("reward_pool", shape, CPUS_PER_GPU) if shape else None
        self.n_gpus: int = sum(pool.world_size for pool in self._pools.values())
        self.all = [*self._pools.values(), *([self.reward] if self.reward else [])]

    def of(self, name: str) -> RayResourcePool:
        """The resource pool on which a policy is placed; for a policy that is served on another pool, the pool of its
        training processes."""
        return self._pools[self.mas.policies[name].pool]

    def serving(self, name: str) -> RayResourcePool:
        """The resource pool with the engines of a policy."""
        return self._pools[serving_pool(self.mas, name)]

    def each(self, names: Iterable[str], work: Callable[[str], object]) -> None:
        """Call `work` for every policy: in parallel for different pools, one by one for the policies of a pool."""
        lanes: dict[str, list[str]] = {}
        for name in names:
            lanes.setdefault(self.mas.policies[name].pool, []).append(name)

        def work_on(lane: list[str]) -> None:
            for name in lane:
                work(name)

        if len(lanes) == 1:
            work_on(*lanes.values())
        elif lanes:
            with ThreadPoolExecutor(len(lanes), thread_name_prefix="pool") as executor:
                list(executor.map(work_on, lanes.values()))


def _pool(name: str, shape: list[int], cpus: int) -> RayResourcePool:
    return RayResourcePool(process_on_nodes=shape, max_colocate_count=cpus, name_prefix=name)


# Seconds to wait for a placement, because Ray takes some seconds to free the GPUs of a run that has just ended.
WAIT_S = 60.0
# CPUs for verl's actors outside the pools.
SPARE_CPUS = 16


def place(pools: Sequence[RayResourcePool]) -> None:
    """Reserve all pools, the largest part first. A part is the share of a pool that must be on one node. Raises
    ConfigError if the cluster has too few GPUs.

    Ray puts each part on the node with the most free resources. If small parts came first, no node might have room for
    a large part.
    """
    parts = sorted(((pool, count) for pool in pools for count in pool.store), key=lambda part: -part[1])
    before = list(nodes())
    until = time.monotonic() + WAIT_S
    placed: dict[RayResourcePool, list[PlacementGroup]] = {pool: [] for pool in pools}
    for pool, count in parts:
        bundle = {"CPU": pool.max_colocate_count, get_platform().ray_resource_name(): 1}
        name = f"{pool.name_prefix}verl_group:{len(placed[pool])}"
        group = placement_group([bundle] * count, strategy="STRICT_PACK", name=name)
        if not group.wait(until - time.monotonic()):
            raise does_not_fit(pool, count, parts, before)
        placed[pool].append(group)
    for pool, groups in placed.items():
        pool.pgs = sort_placement_group_by_node_ip(groups)  # type: ignore[assignment]  # None until placed


def nodes_of(pools: Iterable[RayResourcePool]) -> set[str]:
    """The ids of the nodes on which the pools have been placed."""
    groups: Iterable[PlacementGroup] = chain.from_iterable(pool.pgs or () for pool in pools)
    return {node for group in groups for node in placement_group_table(group)["bundles_to_node_id"].values()}


def nodes() -> Iterator[str]:
    """Describe the nodes of the cluster, with the resources that are free now."""
    free, gpu = available_resources_per_node(), get_platform().ray_resource_name()
    for node in (each for each in ray.nodes() if each["Alive"]):
        total, left = node["Resources"], free.get(node["NodeID"], {})
        gpus, cpus = (f"{left.get(kind, 0):g} of {total.get(kind, 0):g}" for kind in (gpu, "CPU"))
        yield f"{node['NodeManagerAddress']}: {gpus} GPUs and {cpus} CPUs free"


def does_not_fit(
    pool: RayResourcePool, count: int, parts: Iterable[tuple[RayResourcePool, int]], there: Iterable[str]
) -> ConfigError:
    asked = ", ".join(f"{each.name_prefix} {size}" for each, size in parts)
    cpus = count * pool.max_colocate_count
    return ConfigError(
        f"pool {pool.name_prefix} needs {count} GPUs and {cpus} CPUs on one node; before this run, the nodes "
        f"of the Ray cluster were: {'; '.join(there)}",
        rule=f"each part of a pool must be on one node; the parts of this run are, largest first: {asked}",
        fix="lower trainer.n_gpus_per_node, or mas.pools.<pool>.n_gpus_per_node of another pool; end other work on the "
        "cluster, which `ray status` shows; or add a node. On the CPU, both are counters: ray start "
        f"--num-gpus={count} --num-cpus={cpus + SPARE_CPUS}",
    )
