"""How many sessions run at once, computed from the configuration alone."""

from __future__ import annotations

from omegaconf import DictConfig

from verl_mas.config.merge import SECTION
from verl_mas.config.placement import pool_shape, replica_size, served_on, serving_pool, used_pools
from verl_mas.config.run import Run


def sessions_at_once(run: Run) -> int:
    """`mas.max_sessions` or, where that is null, as many as the engines serve without a queue."""
    candidates = max(run.mas.branch.k, run.mas.branch.validation_k)
    return run.mas.max_sessions or max(requests_at_once(run) // candidates, workers(run.config))


def sessions_per_worker(run: Run) -> int:
    return max(1, sessions_at_once(run) // workers(run.config))


def workers(config: DictConfig) -> int:
    """Agent-loop workers, over which verl divides the tasks equally."""
    return int(config[SECTION].rollout.agent.num_workers)


def requests_at_once(run: Run) -> int:
    """What all engines serve at once; without an engine here, what the endpoints are sent at once.

    Policies on one pool share its GPUs, and all sessions may call the same policy, so they do not add up.
    """
    served = [names for pool in used_pools(run.mas) if (names := served_on(run.mas, pool))]
    pools = [max(_requests(run, name) for name in names) for names in served]
    remotes = [spec.remote.concurrency * workers(run.config) for spec in run.mas.policies.values() if spec.remote]
    return sum(pools or remotes)


def _requests(run: Run, name: str) -> int:
    replicas = sum(pool_shape(run, serving_pool(run.mas, name))) // replica_size(run, name)
    return max(1, replicas) * int(run.view(name).value("rollout.max_num_seqs"))
