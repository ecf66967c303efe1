"""Decides whether the engines of a pool are awake together or in phases: `mas.pools.<pool>.serving`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verl_mas.config.placement import replica_size, served_on, shared_pools, time_sliced
from verl_mas.config.run import R, Run, View
from verl_mas.engines.facts import facts_of
from verl_mas.engines.platform import DEVICE as CPU

# Largest share of a GPU that engines may reserve. It limits the sum over a pool's engines if they are awake together,
# and each single engine if they take turns in phases. CUDA contexts, CUDA graphs and trainers need the rest.
MOST = 0.85


@dataclass(frozen=True)
class ServingChoice:
    way: Literal["together", "phases"]
    reason: str


def choose(run: Run, policies: Sequence[str]) -> ServingChoice:
    """Keep the engines of these policies awake together if they fit. Phases are the second choice, because every change
    of engines is then a barrier, and the cost of this barrier was not measured."""
    views, widest = [run.view(name) for name in policies], max(replica_size(run, name) for name in policies)
    reserving = [view for view in views if facts_of(view.engine).gpu_fraction]
    total = sum(float(view.value("rollout.gpu_memory_utilization")) for view in reserving)
    if total > MOST + 1e-9:
        reason = f"the memory fractions add up to {total:g}, above {MOST:g}"
    elif widest > 1:
        reason = f"with replicas of {widest} GPUs, kernels that communicate would wait for time slices of other engines"
    else:
        return ServingChoice("together", f"the memory fractions add up to {total:g}, at most {MOST:g}")
    if all(view.value("rollout.free_cache_engine") for view in views):
        return ServingChoice("phases", reason)
    return ServingChoice("together", f"{reason}, but an engine with rollout.free_cache_engine=False frees no memory")


def lowered(fractions: Sequence[float], most: float) -> list[float]:
    """Lower fractions by a common factor to whole percents with a sum of at most `most`."""
    factor = most / sum(fractions)
    return [int(fraction * factor * 100 + 1e-6) / 100 for fraction in fractions]


def serving(run: Run, pool: str) -> ServingChoice:
    """Return how the engines of a pool are served, and the reason."""
    wanted = run.mas.pools[pool].serving
    if wanted != "auto":
        return ServingChoice(wanted, f"mas.pools.{pool}.serving")
    if pool not in shared_pools(run.mas):
        return ServingChoice("together", "one policy")
    if run.config.trainer.device == CPU:
        return ServingChoice("together", "on the CPU engines share the memory of the host")
    return choose(run, served_on(run.mas, pool))


def resolve_serving(run: R) -> R:
    """Resolve `serving: auto` for this run."""
    pools = {pool: replace(spec, serving=serving(run, pool).way) for pool, spec in run.mas.pools.items()}
    return replace(run, mas=replace(run.mas, pools=pools))


def start_together(run: Run, pool: str) -> bool:
    """Whether policies of a pool may start at the same time. They may if their engines are not time-sliced and no
    engine measures the free memory of a GPU. In `run`, `serving: auto` must be resolved already."""
    views = [run.view(name) for name in served_on(run.mas, pool)]
    measures = [facts_of(view.engine).gpu_fraction and cache_bytes(view) is None for view in views]
    return bool(views) and not any(measures) and not time_sliced(run.mas, pool)


def cache_bytes(view: View) -> int | None:
    """Bytes of the KV cache per GPU if an option of the engine sets them; else None."""
    option = facts_of(view.engine).cache_option
    size = view.get(f"rollout.engine_kwargs.{view.engine}.{option}") if option else None
    return int(size) if size else None
