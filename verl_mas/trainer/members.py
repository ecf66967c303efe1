"""The policies of a run that have engines of their own, each with its configuration, processes and engines."""

from __future__ import annotations

from collections.abc import Mapping

from verl_mas.config.adapters import adapter_table
from verl_mas.config.merge import snapshot_sources
from verl_mas.config.placement import local_policies, placed, served_on, serving_pool
from verl_mas.config.run import Run
from verl_mas.engines.facts import set_options
from verl_mas.trainer.adapters.policies import AdapterPolicy, SharedBase
from verl_mas.trainer.policies.local_policy import LocalPolicy
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer, Updates
from verl_mas.trainer.policies.separate import SeparatePolicy, send_apart
from verl_mas.trainer.policies.servers import FrozenPolicy, Servers
from verl_mas.trainer.policies.snapshots import Snapshot
from verl_mas.trainer.policies.weight_folder import use_folder
from verl_mas.trainer.pools.pools import Pools


def make(name: str, run: Run, pools: Pools, total_steps: int) -> LocalPolicy | FrozenPolicy:
    """Make a policy and all adapters on it. Its processes start later, in `start`."""

    def updates(policy: str) -> Updates:
        of = run.view(policy)
        weighting, every, skips = run.mas.loss.weighting, of.old_log_probs_every, of.skips_zero_advantage
        return Updates(of.updates_per_step, total_steps, weighting, every, skips, of.shares_prefixes)

    spec, pool = run.mas.policies[name], pools.of(name)
    view = placed(run, name)
    set_options(
        view, local_policies(run.mas).index(name), shared=len(served_on(run.mas, serving_pool(run.mas, name))) > 1
    )
    send_apart(view, name)
    if table := adapter_table(run, name):
        base = SharedBase(name, view, pool, table, total_steps)
        for adapter in table:
            base.adapters[adapter] = AdapterPolicy(adapter, run.view(adapter).copy(), base, updates(adapter))
        return base
    if spec.snapshot:
        return Snapshot(name, view, pool, spec.snapshot)
    if not spec.is_trained:
        return FrozenPolicy(name, view, pool)
    if name in snapshot_sources(run.mas):
        use_folder(view)
    if spec.engines:
        return SeparatePolicy(name, view, pool, updates(name), pools.serving(name))
    return PolicyTrainer(name, view, pool, updates(name))


def trained_by(member: Servers) -> Mapping[str, PolicyTrainer]:
    """The trained policies, by name, that the engines of this policy serve: itself, or its adapters."""
    if isinstance(member, SharedBase):
        return member.adapters
    return {member.name: member} if isinstance(member, PolicyTrainer) else {}
