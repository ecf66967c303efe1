"""Computes the GPUs of each policy, and the number of concurrent sessions, from the configuration alone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from omegaconf import DictConfig, open_dict

from verl_mas.config.adapters import host_policy
from verl_mas.config.engine_tag import EngineTag, gpus_of_replica
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run
from verl_mas.config.schema import DEFAULT_POOL, MasConfig
from verl_mas.errors import ConfigError

# CPUs that verl reserves per GPU in the pools that verl itself makes: the pool of the reward model, and the pool of a
# run without a team.
CPUS_PER_GPU = 3
# Sections of `actor` and `ref` with the settings of their training engine.
TRAINING_ENGINES = ("fsdp_config", "megatron", "veomni", "torchtitan")


@dataclass(frozen=True)
class Resources:
    """GPUs and CPUs as Ray counts them."""

    gpus: float
    cpus: float


def require(want: Resources, have: Resources, who: str) -> Iterator[ConfigError]:
    """Yield an error for each resource of which Ray has too little. Without these errors, verl would wait forever for
    an actor."""
    if have.gpus < want.gpus:
        yield ConfigError(
            f"{who} needs {want.gpus:g} GPUs, Ray has {have.gpus:g}",
            rule="every worker process reserves a GPU or a share of one; on the CPU these are only counters",
            fix="lower trainer.n_gpus_per_node (of a pool: mas.pools.<pool>.n_gpus_per_node); to check a run on other "
            f"machines, add --gpus {want.gpus:g}x80; on the CPU, set ++ray_kwargs.ray_init.num_gpus={want.gpus:g}",
        )
    if have.cpus < want.cpus:
        yield ConfigError(
            f"{who} reserves {want.cpus:g} Ray CPUs, Ray has {have.cpus:g}",
            rule="every worker process reserves one, and so does every unit of TransferQueue",
            fix=f"set ++ray_kwargs.ray_init.num_cpus={want.cpus:g} (a count for scheduling, not cores), or lower "
            "transfer_queue.backend.SimpleStorage.num_data_storage_units",
        )


def pool_shape(run: Run, pool: str) -> list[int]:
    """The number of GPUs on each node of a pool."""
    spec = run.mas.pools[pool]
    nodes = spec.nnodes or (run.config.trainer.nnodes if pool == DEFAULT_POOL else 1)
    gpus = spec.n_gpus_per_node or run.config.trainer.n_gpus_per_node
    return [int(gpus)] * int(nodes)


def policies_on(mas: MasConfig, pool: str) -> list[str]:
    """The policies that have training or engine processes of their own on a pool. Remote policies have no processes,
    and adapters use the processes of their base."""
    return [name for name in local_policies(mas) if pool in (mas.policies[name].pool, mas.policies[name].engines)]


def served_on(mas: MasConfig, pool: str) -> list[str]:
    """The policies with engines on a pool."""
    return [name for name in local_policies(mas) if serving_pool(mas, name) == pool]


def serving_pool(mas: MasConfig, name: str) -> str:
    """The pool with the engines of a policy that is not remote."""
    home = mas.policies[host_policy(mas, name)]
    return home.engines or home.pool


def replica_size(run: Run, name: str) -> int:
    """The number of GPUs of one engine replica of a policy."""
    return gpus_of_replica(lambda key: run.view(name).value(f"rollout.{key}"))


def slots(mas: MasConfig, pool: str) -> int:
    """The number of shares into which each GPU of the pool is divided: one more than the number of policies.

    Ray rounds shares to four digits, so the sum of n shares of 1/n could exceed 1.
    """
    return len(policies_on(mas, pool)) + 1


def local_policies(mas: MasConfig) -> list[str]:
    """The policies with their own engines in this run. An adapter is served by the engines of its base."""
    return [name for name, spec in mas.policies.items() if not spec.remote and not spec.adapter_of]


def used_pools(mas: MasConfig) -> list[str]:
    return [pool for pool in mas.pools if policies_on(mas, pool)]


def shared_pools(mas: MasConfig) -> list[str]:
    """The pools with engines of several policies."""
    return [pool for pool in mas.pools if len(served_on(mas, pool)) > 1]


def time_sliced(mas: MasConfig, pool: str) -> bool:
    """Whether the engines of a pool are time-sliced (`serving: phases`). In `mas`, `serving: auto` must be resolved
    already."""
    if pool not in shared_pools(mas):
        return False
    assert mas.pools[pool].serving != "auto", "engines.serving.resolve_serving replaces it"
    return mas.pools[pool].serving == "phases"


def reward_shape(config: DictConfig) -> list[int]:
    """The number of GPUs on each node of the reward model's pool, which belongs to no policy."""
    model = config.reward.reward_model
    own = model.enable and model.enable_resource_pool
    return [int(model.n_gpus_per_node)] * int(model.nnodes) if own else []


def gpus_needed(run: Run) -> int:
    return sum(sum(pool_shape(run, pool)) for pool in used_pools(run.mas)) + sum(reward_shape(run.config))


def cpus_needed(run: Run) -> int:
    """The number of Ray CPUs: one per GPU share, CPUS_PER_GPU per GPU of a pool of verl, one per storage unit of
    TransferQueue, one for TransferQueue's controller, and one spare. The spare CPU is needed because Ray places an
    actor without resources only on a node with a free CPU."""
    pools = {pool: slots(run.mas, pool) if run.mode else CPUS_PER_GPU for pool in used_pools(run.mas)}
    shares = sum(sum(pool_shape(run, pool)) * cpus for pool, cpus in pools.items())
    shares += sum(reward_shape(run.config)) * CPUS_PER_GPU
    return shares + int(run.config.transfer_queue.backend.SimpleStorage.num_data_storage_units) + 2


def placed(run: Run, name: str) -> DictConfig:
    """Copy the view of a policy, and set the GPUs and the engine tag that follow from its pools."""
    view, mas, spec, serves = run.view(name).copy(), run.mas, run.mas.policies[name], serving_pool(run.mas, name)
    shape, engines, neighbours = pool_shape(run, spec.pool), pool_shape(run, serves), policies_on(mas, spec.pool)
    EngineTag(name, rank_offset(run, name), time_sliced(mas, serves)).write(view)
    with open_dict(view):
        view.trainer.nnodes, view.trainer.n_gpus_per_node = len(shape), shape[0]
        view[SECTION].rollout.nnodes, view[SECTION].rollout.n_gpus_per_node = len(engines), engines[0]
        # In the settings, rank 0 is the first GPU of the policy's first replica. For verl's profiler, rank 0 is the
        # first GPU of the replica with index 0, so add the offset.
        rollout = view[SECTION].rollout
        offset, profiler = EngineTag.of(rollout).rank_offset, rollout.get("profiler")
        if offset and profiler:
            first = offset * gpus_of_replica(lambda key: rollout.get(key, 1))
            # If no ranks are set, verl profiles the first rank.
            profiler.ranks = [first + rank for rank in profiler.get("ranks") or [0]]
        if len(neighbours) > 1 and mas.pools[spec.pool].offload and view.trainer.device != "cpu":
            for role, key in product(("actor", "ref"), TRAINING_ENGINES):
                if (engine := view[SECTION][role].get(key)) is not None:
                    engine.param_offload = True
                    if role == "actor":
                        engine.optimizer_offload = True
            if run.critics:
                view.critic.fsdp.param_offload = view.critic.fsdp.optimizer_offload = True
    return view


def rank_offset(run: Run, name: str) -> int:
    """The index of a policy's first replica, chosen so that no two policies share a server name or a socket.

    It is a multiple of the number of GPUs per node, because engines take the rank modulo this number as their GPU.
    """
    stride = math.lcm(*(sum(pool_shape(run, pool)) for pool in used_pools(run.mas)))
    return local_policies(run.mas).index(host_policy(run.mas, name)) * stride


def sessions_at_once(run: Run) -> int:
    """`mas.max_sessions` or, if it is null, the number of sessions that the engines can serve without a queue."""
    candidates = max(run.mas.branch.k, run.mas.branch.validation_k)
    return run.mas.max_sessions or max(requests_at_once(run) // candidates, workers(run.config))


def sessions_per_worker(run: Run) -> int:
    return max(1, sessions_at_once(run) // workers(run.config))


def workers(config: DictConfig) -> int:
    """The number of agent-loop workers, among which verl divides the tasks equally."""
    return int(config[SECTION].rollout.agent.num_workers)


def requests_at_once(run: Run) -> int:
    """The number of requests that all engines serve at once. Without local engines, it is the limit of concurrent
    requests to the endpoints.

    Policies on one pool share its GPUs, and all sessions may call the same policy. So each pool counts with the largest
    number among its policies, and the result is the sum over the pools.
    """

    def requests(name: str) -> int:
        replicas = sum(pool_shape(run, serving_pool(run.mas, name))) // replica_size(run, name)
        return max(1, replicas) * int(run.view(name).value("rollout.max_num_seqs"))

    served = [names for pool in used_pools(run.mas) if (names := served_on(run.mas, pool))]
    pools = [max(map(requests, names)) for names in served]
    remotes = [spec.remote.concurrency * workers(run.config) for spec in run.mas.policies.values() if spec.remote]
    return sum(pools or remotes)
