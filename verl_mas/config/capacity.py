"""How many sessions run at once, computed from the configuration alone."""

from __future__ import annotations

from omegaconf import DictConfig

from verl_mas.config.merge import SECTION, policy_value
from verl_mas.config.placement import pool_shape, replica_size, served_on, serving_pool, used_pools
from verl_mas.config.schema import MasConfig


def sessions_at_once(config: DictConfig, mas: MasConfig) -> int:
    """`mas.max_sessions` or, where that is null, as many as the engines serve without a queue."""
    candidates = max(mas.branch.k, mas.branch.validation_k)
    return mas.max_sessions or max(requests_at_once(config, mas) // candidates, workers(config))


def sessions_per_worker(config: DictConfig, mas: MasConfig) -> int:
    return max(1, sessions_at_once(config, mas) // workers(config))


def workers(config: DictConfig) -> int:
    """Agent-loop workers, over which verl divides the tasks equally."""
    return int(config[SECTION].rollout.agent.num_workers)


def requests_at_once(config: DictConfig, mas: MasConfig) -> int:
    """What all engines serve at once; without an engine here, what the endpoints are sent at once.

    Policies on one pool share its GPUs, and all sessions may call the same policy, so they do not add up.
    """
    served = [names for pool in used_pools(mas) if (names := served_on(mas, pool))]
    pools = [max(_requests(config, mas, name) for name in names) for names in served]
    remotes = [spec.remote.concurrency * workers(config) for spec in mas.policies.values() if spec.remote]
    return sum(pools or remotes)


def _requests(config: DictConfig, mas: MasConfig, name: str) -> int:
    spec = mas.policies[name]
    replicas = sum(pool_shape(config, mas, serving_pool(mas, name))) // replica_size(config, mas, name)
    return max(1, replicas) * int(policy_value(config, spec, "rollout.max_num_seqs"))
