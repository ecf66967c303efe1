"""The policies of a run that have engines of their own, each with its configuration, processes and engines."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import DictConfig

from verl_mas.config.adapters import adapter_table
from verl_mas.config.merge import policy_view, snapshot_sources, updates_per_step
from verl_mas.config.placement import apply_placement, local_policies, served_on, serving_pool
from verl_mas.config.schema import MasConfig
from verl_mas.engines.facts import set_options
from verl_mas.trainer.adapters.policies import AdapterPolicy, SharedBase
from verl_mas.trainer.policies.local_policy import LocalPolicy
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.separate import SeparatePolicy, send_apart
from verl_mas.trainer.policies.servers import FrozenPolicy, Servers
from verl_mas.trainer.policies.snapshots import Snapshot
from verl_mas.trainer.policies.weight_folder import use_folder
from verl_mas.trainer.pools.pools import Pools


def start(name: str, config: DictConfig, mas: MasConfig, pools: Pools, total_steps: int) -> LocalPolicy | FrozenPolicy:
    """A policy with its engines, and all adapters on it. It returns when the engines are there, asleep."""
    spec, pool = mas.policies[name], pools.of(name)
    view = policy_view(config, name, spec)
    apply_placement(view, mas, name)
    set_options(view, local_policies(mas).index(name), shared=len(served_on(mas, serving_pool(mas, name))) > 1)
    send_apart(view, name)
    if table := adapter_table(config, mas, name):
        base = SharedBase(name, view, pool, table, total_steps)
        base._setup()  # noqa: SLF001
        base.adapters = {adapter: _adapter(adapter, config, mas, base) for adapter in table}
        return base
    if spec.snapshot:
        return Snapshot(name, view, pool, spec.snapshot)
    if not spec.is_trained:
        return FrozenPolicy(name, view, pool)
    if name in snapshot_sources(mas):
        use_folder(view)
    updates = updates_per_step(config, mas, name)
    policy = (
        SeparatePolicy(name, view, pool, updates, total_steps, mas.loss.weighting, serving=pools.serving(name))
        if spec.engines
        else PolicyTrainer(name, view, pool, updates, total_steps, mas.loss.weighting)
    )
    policy._setup()  # noqa: SLF001
    return policy


def trained_by(member: Servers) -> Mapping[str, PolicyTrainer]:
    """The policies that are updated and use the engines of a member, by name."""
    if isinstance(member, SharedBase):
        return member.adapters
    return {member.name: member} if isinstance(member, PolicyTrainer) else {}


def _adapter(name: str, config: DictConfig, mas: MasConfig, base: SharedBase) -> AdapterPolicy:
    view = policy_view(config, name, mas.policies[name])
    updates = updates_per_step(config, mas, name)
    policy = AdapterPolicy(name, view, base, updates, base.total_training_steps, mas.loss.weighting)
    policy._setup()  # noqa: SLF001
    return policy
