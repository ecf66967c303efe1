"""Checks whether the policies of a pool fit, and finds settings that would make them fit."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TypeAlias

from verl_mas.engines.serving import MOST, lowered
from verl_mas.planning.events import Moment, Pool
from verl_mas.planning.hardware import SAFE
from verl_mas.planning.load import Policy
from verl_mas.planning.serving import kv_per_token


@dataclass(frozen=True)
class Change:
    """Changed settings, and the pool that they result in."""

    settings: tuple[str, ...]
    policies: tuple[Policy, ...]
    phases: bool
    gpus: int  # number of GPUs of the pool
    costs: tuple[str, ...] = ()  # drawbacks, shown with the settings

    def __str__(self) -> str:
        return " ".join(self.settings) + (f" (it costs: {', '.join(self.costs)})" if self.costs else "")


Kind: TypeAlias = Callable[[Change], Iterator[Change]]
Larger: TypeAlias = tuple[str, int]  # the setting that gives the pool all GPUs of `--gpus`, and their number


def worst(pool: Pool) -> Moment:
    return max(pool.events(), key=lambda event: event.total)


def tokens(pool: Pool, policy: Policy) -> int:
    """Number of KV tokens in one engine of the policy."""
    return max(0, int(pool.caches[policy.name] / kv_per_token(policy)))


def needed_tokens(policy: Policy) -> int:
    """Number of tokens that an engine's KV cache must hold: one row, or a whole context for engines that otherwise do
    not start."""
    return policy.context if policy.memory.holds_context else policy.row


def too_small(pool: Pool) -> list[Policy]:
    """Policies whose engine cannot hold a single request."""
    served = [policy for policy in pool.policies if not policy.elsewhere]
    return [policy for policy in served if tokens(pool, policy) < needed_tokens(policy)]


def fits(pool: Pool) -> bool:
    return worst(pool).total <= SAFE * pool.card and not too_small(pool)


def fixes(pool: Pool, gpus: int, larger: Larger | None = None) -> list[str]:
    """Find settings with which a pool of `gpus` GPUs fits, preferring few changes. The formulas confirm each result."""
    start = Change((), tuple(pool.policies), pool.phases, gpus)
    more: Kind = partial(_more_gpus, larger)
    kinds: tuple[Kind, ...] = (_shards, more, _context, _phases, _offload, _budget, _tensor_parallel, _fractions)
    for count in (1, 2, 3):
        found = []
        for chosen in combinations(kinds, count):
            changes = [start]
            for kind in chosen:
                changes = [new for change in changes for new in kind(change)]
            right = next((c for c in changes if fits(pool.of(c.policies, phases=c.phases))), None)
            if right is not None:
                found.append(str(right))
        if found:
            return found
    return []


def one_row(pool: Pool) -> Pool:
    """Reduce each micro batch to one row of maximal length."""
    return pool.of(_micro(policy, most=policy.row) for policy in pool.policies)


def room(pool: Pool) -> float:
    """Return the largest share of the present tokens per micro batch with which the pool fits; 0.0 if it never fits."""
    smaller = ((percent / 100, [_micro(one, percent / 100) for one in pool.policies]) for percent in range(100, 0, -1))
    return next((share for share, policies in smaller if fits(pool.of(policies))), 0.0)


def _micro(policy: Policy, share: float = 1.0, most: float = math.inf) -> Policy:
    def smaller(tokens: int) -> int:
        return int(min(share * tokens, most))

    return policy.resized(smaller, smaller)


def odds(fitting: float, usual: float, rows: float, times: float) -> str:
    """Say in words how often a micro batch is too long, if a step has `times` micro batches of `rows` rows.

    `fitting` and `usual` are shares of the longest row: the mean length that just fits, and the usual mean length.
    The result is Hoeffding's upper bound for rows with independent lengths, so the true odds are lower.
    """
    if fitting <= usual:
        return "expected in every step"
    most = times * math.exp(-2 * rows * (fitting - usual) ** 2)
    if most < 1e-6:
        return "less than once in a million steps"
    return f"at most once in {1 / most:,.0f} steps" if most < 0.5 else "possible in any step"


def _changed(change: Change, setting: str, policies: Sequence[Policy], cost: str = "") -> Change:
    costs = (*change.costs, *([cost] if cost else []))
    return replace(change, settings=(*change.settings, setting), policies=tuple(policies), costs=costs)


def _each(change: Change, field: str, key: str, values: Sequence[object]) -> Change:
    """Set one field of each policy, and add one setting per policy."""
    policies = [replace(p, **{field: value}) for p, value in zip(change.policies, values, strict=True)]  # type: ignore[arg-type]
    return _changed(change, _settings(policies, key, values), policies)


def _settings(policies: Sequence[Policy], key: str, values: Sequence[object]) -> str:
    """Format one setting per policy."""
    return " ".join(f"{policy.section}.{key}={value}" for policy, value in zip(policies, values, strict=True))


def _more_gpus(larger: Larger | None, change: Change) -> Iterator[Change]:
    """Use all GPUs of `--gpus`: parameters that are sharded over the whole pool are then sharded over more GPUs."""
    if larger is not None:
        setting, gpus = larger
        policies = [replace(one, shards=gpus) if one.shards == change.gpus else one for one in change.policies]
        yield replace(_changed(change, setting, policies), gpus=gpus)


def _shards(change: Change) -> Iterator[Change]:
    """Shard parameters and optimiser over all GPUs of the pool."""
    few = [policy for policy in change.policies if policy.trains and policy.shards < change.gpus]
    if few:
        policies = [replace(one, shards=change.gpus) if one in few else one for one in change.policies]
        yield _changed(change, _settings(few, "actor.fsdp_config.fsdp_size", [-1] * len(few)), policies)


def _fractions(change: Change) -> Iterator[Change]:
    """Raise or lower all fractions by a common factor. The largest factor comes first."""
    old = [policy.fraction for policy in change.policies if policy.fraction is not None]
    if len(old) != len(change.policies):
        return
    for percent in range(round(MOST * 100), 4, -5):
        # In phases, the limit applies to the largest fraction instead of the sum of all fractions.
        new = lowered(old, percent / 100 * (sum(old) / max(old) if change.phases else 1))
        if min(new) >= 0.05:
            yield _each(change, "fraction", "rollout.gpu_memory_utilization", new)


def _context(change: Change) -> Iterator[Change]:
    if all(policy.context > policy.row for policy in change.policies):
        yield _each(change, "max_model_len", "rollout.max_model_len", [policy.row for policy in change.policies])


def _phases(change: Change) -> Iterator[Change]:
    if len(change.policies) > 1 and not change.phases and all(policy.sleeps for policy in change.policies):
        pool = change.policies[0].pool
        yield replace(change, settings=(*change.settings, f"++mas.pools.{pool}.serving=phases"), phases=True)


def _offload(change: Change) -> Iterator[Change]:
    trained = [policy for policy in change.policies if policy.trains]
    if trained and not all(policy.param_offload and policy.optimizer_offload for policy in trained):
        policies = [replace(policy, param_offload=True, optimizer_offload=True) for policy in change.policies]
        fsdp = f"{policies[0].section}.actor.fsdp_config"
        alone = f"{fsdp}.param_offload=true {fsdp}.optimizer_offload=true"
        setting = alone if len(policies) == 1 else f"++mas.pools.{policies[0].pool}.offload=true"
        yield _changed(change, setting, policies, "parameters and Adam move to the host and back in each step")


def _budget(change: Change) -> Iterator[Change]:
    """Lower the tokens per micro batch. Yield powers of two from large to small, and then the tokens of one row of
    maximal length."""
    trained = [policy for policy in change.policies if policy.trains]
    most = max((max(policy.update_tokens, policy.log_prob_tokens) for policy in trained), default=0)
    least = max((policy.row for policy in trained), default=0)
    powers = (1 << bits for bits in range(most.bit_length(), 0, -1))
    fixed = [policy for policy in trained if not policy.by_tokens]
    switches = ("actor.use_dynamic_bsz", "rollout.log_prob_use_dynamic_bsz") if fixed else ()
    for size in (*(power for power in powers if least < power < most), *([least] if least < most else [])):
        policies = [replace(_micro(policy, most=size), by_tokens=True) for policy in change.policies]
        named = [policy for policy in policies if policy.trains]
        settings = [_settings(fixed, key, ["true"] * len(fixed)) for key in switches]
        settings.append(_settings(named, "actor.ppo_max_token_len_per_gpu", [one.update_tokens for one in named]))
        key = "rollout.log_prob_max_token_len_per_gpu"
        settings.append(_settings(named, key, [one.log_prob_tokens for one in named]))
        settings += [f"++critic.ppo_infer_max_token_len_per_gpu={size}"] * any(one.critic for one in named)
        cost = f"micro batches of {size:,} tokens, so up to {most / size:.3g} times as many as with {most:,}"
        yield _changed(change, " ".join(settings), policies, cost)


def _tensor_parallel(change: Change) -> Iterator[Change]:
    for size in (2, 4, 8):
        if change.gpus % size == 0 and all(policy.replica < size for policy in change.policies):
            sizes = [size] * len(change.policies)
            yield _each(change, "tensor_parallel", "rollout.tensor_model_parallel_size", sizes)
