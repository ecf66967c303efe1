"""Whether the policies of a pool fit, and which settings would make them fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TypeAlias

from verl_mas.engines.serving import MOST, lowered
from verl_mas.planning.events import Moment, Pool
from verl_mas.planning.hardware import SAFE
from verl_mas.planning.load import Policy
from verl_mas.planning.serving import SGLANG, kv_tokens


@dataclass(frozen=True)
class Change:
    """Settings, and the pool with them."""

    settings: tuple[str, ...]
    policies: tuple[Policy, ...]
    phases: bool
    gpus: int  # Of the pool


Kind: TypeAlias = Callable[[Change], Iterator[Change]]


@dataclass(frozen=True)
class Larger:
    """The pool with all GPUs of `--gpus`."""

    setting: str
    gpus: int


def worst(pool: Pool) -> Moment:
    return max(pool.events(), key=lambda event: event.total)


def tokens(pool: Pool, policy: Policy) -> int:
    """KV tokens of one engine of the policy."""
    return kv_tokens(policy.model, policy.serving, pool.caches[policy.name])


def needed_tokens(policy: Policy) -> int:
    """vLLM starts only if one request of the whole context fits; any engine must hold a row."""
    return policy.serving.row if policy.serving.engine == SGLANG else policy.context


def too_small(pool: Pool) -> list[Policy]:
    """Policies whose engine has no room for one request."""
    served = [policy for policy in pool.policies if not policy.serving.elsewhere]
    return [policy for policy in served if tokens(pool, policy) < needed_tokens(policy)]


def fits(pool: Pool) -> bool:
    return worst(pool).total <= SAFE * pool.card and not too_small(pool)


def fixes(pool: Pool, gpus: int, larger: Larger | None = None) -> list[str]:
    """Settings with which the pool of `gpus` fits, the fewest first; each was tried in the formulas."""
    start = Change((), tuple(pool.policies), pool.phases, gpus)
    more: Kind = partial(_more_gpus, larger)
    kinds: tuple[Kind, ...] = (more, _context, _phases, _offload, _budget, _tensor_parallel, _fractions)
    for count in (1, 2, 3):
        found = []
        for chosen in combinations(kinds, count):
            changes = [start]
            for kind in chosen:
                changes = [new for change in changes for new in kind(change)]
            right = next((c for c in changes if fits(Pool(c.policies, pool.card, phases=c.phases))), None)
            if right is not None:
                found.append(" ".join(right.settings))
        if found:
            return found
    return []


def _changed(change: Change, setting: str, policies: Sequence[Policy]) -> Change:
    return replace(change, settings=(*change.settings, setting), policies=tuple(policies))


def _serving(policy: Policy, **fields: object) -> Policy:
    return replace(policy, serving=replace(policy.serving, **fields))  # type: ignore[arg-type]


def _training(policy: Policy, **fields: object) -> Policy:
    return policy if policy.training is None else replace(policy, training=replace(policy.training, **fields))  # type: ignore[arg-type]


def _settings(policies: Sequence[Policy], key: str, values: Sequence[object]) -> str:
    """One setting per policy."""
    return " ".join(f"{policy.section}.{key}={value}" for policy, value in zip(policies, values, strict=True))


def _more_gpus(larger: Larger | None, change: Change) -> Iterator[Change]:
    """A parameter that is divided among all GPUs of the pool is divided among more."""
    if larger is not None:
        policies = [
            _training(policy, shards=larger.gpus)
            if policy.training is not None and policy.training.shards == change.gpus
            else policy
            for policy in change.policies
        ]
        yield replace(_changed(change, larger.setting, policies), gpus=larger.gpus)


def _fractions(change: Change) -> Iterator[Change]:
    """All fractions raised or lowered alike, the largest first."""
    served = [policy.serving.fraction for policy in change.policies]
    old = [fraction for fraction in served if fraction is not None]
    if len(old) != len(served):
        return
    for percent in range(round(MOST * 100), 4, -5):
        # In phases the largest one is the limit, and not their sum.
        new = lowered(old, percent / 100 * (sum(old) / max(old) if change.phases else 1))
        if min(new) >= 0.05:
            key = "rollout.gpu_memory_utilization"
            policies = [_serving(p, fraction=f) for p, f in zip(change.policies, new, strict=True)]
            yield _changed(change, _settings(policies, key, new), policies)


def _context(change: Change) -> Iterator[Change]:
    if all(policy.context > policy.serving.row for policy in change.policies):
        rows = [policy.serving.row for policy in change.policies]
        policies = [_serving(policy, context=policy.serving.row) for policy in change.policies]
        yield _changed(change, _settings(policies, "rollout.max_model_len", rows), policies)


def _phases(change: Change) -> Iterator[Change]:
    if len(change.policies) > 1 and not change.phases and all(policy.serving.sleeps for policy in change.policies):
        pool = change.policies[0].pool
        yield replace(change, settings=(*change.settings, f"++mas.pools.{pool}.serving=phases"), phases=True)


def _offload(change: Change) -> Iterator[Change]:
    trained = [policy.training for policy in change.policies if policy.training is not None]
    if trained and not all(training.param_offload and training.optimizer_offload for training in trained):
        policies = [_training(policy, param_offload=True, optimizer_offload=True) for policy in change.policies]
        fsdp = f"{policies[0].section}.actor.fsdp_config"
        alone = f"{fsdp}.param_offload=true {fsdp}.optimizer_offload=true"
        setting = alone if len(policies) == 1 else f"++mas.pools.{policies[0].pool}.offload=true"
        yield _changed(change, setting, policies)


def _budget(change: Change) -> Iterator[Change]:
    """A micro batch of one longest row."""
    trained = [(policy, policy.training) for policy in change.policies if policy.training is not None]
    if any(max(training.update_tokens, training.log_prob_tokens) > policy.serving.row for policy, training in trained):
        rows = [policy.serving.row for policy, _ in trained]
        policies = [
            _training(policy, update_tokens=policy.serving.row, log_prob_tokens=policy.serving.row, by_tokens=True)
            for policy in change.policies
        ]
        fixed = [policy for policy, training in trained if not training.by_tokens]
        switches = ("actor.use_dynamic_bsz", "rollout.log_prob_use_dynamic_bsz") if fixed else ()
        budgets = ("actor.ppo_max_token_len_per_gpu", "rollout.log_prob_max_token_len_per_gpu")
        settings = [_settings(fixed, key, ["true"] * len(fixed)) for key in switches]
        settings += [_settings([policy for policy, _ in trained], key, rows) for key in budgets]
        yield _changed(change, " ".join(settings), policies)


def _tensor_parallel(change: Change) -> Iterator[Change]:
    for size in (2, 4, 8):
        if change.gpus % size == 0 and all(policy.serving.replica < size for policy in change.policies):
            policies = [_serving(policy, tensor_parallel=size) for policy in change.policies]
            sizes = [size] * len(policies)
            yield _changed(change, _settings(policies, "rollout.tensor_model_parallel_size", sizes), policies)
