"""Makes the policies of a run that have their own engines, each with its configuration, processes and engines."""

from verl_mas.config.adapters import adapter_table
from verl_mas.config.merge import snapshot_sources
from verl_mas.config.placement import local_policies, placed, served_on, serving_pool
from verl_mas.config.run import Run
from verl_mas.engines.facts import set_options
from verl_mas.trainer.adapters.policies import AdapterPolicy, SharedBase
from verl_mas.trainer.policies.local_policy import LocalPolicy
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.separate import SeparatePolicy, send_apart
from verl_mas.trainer.policies.servers import FrozenPolicy
from verl_mas.trainer.policies.snapshots import Snapshot
from verl_mas.trainer.policies.weight_folder import use_folder
from verl_mas.trainer.pools.pools import Pools


def make(name: str, run: Run, pools: Pools, total_steps: int) -> LocalPolicy | FrozenPolicy:
    """Make a policy and all adapters on it. Its processes start later, in `start`."""
    view, pool, config = run.view(name), pools.of(name), placed(run, name)
    beside = served_on(run.mas, serving_pool(run.mas, name))
    set_options(config, local_policies(run.mas).index(name), shared=len(beside) > 1)
    send_apart(config, name)
    if table := adapter_table(run, name):
        base = SharedBase(name, config, pool, table, total_steps)
        base.adapters = {adapter: AdapterPolicy(run.view(adapter), base) for adapter in table}
        return base
    if view.spec.snapshot:
        return Snapshot(name, config, pool, view.spec.snapshot)
    if not view.spec.is_trained:
        return FrozenPolicy(name, config, pool)
    if name in snapshot_sources(run.mas):
        use_folder(config)
    if view.spec.engines:
        return SeparatePolicy(view, config, pool, total_steps, pools.serving(name))
    return PolicyTrainer(view, config, pool, total_steps)
