"""Checks of policies that are trained on one pool and served on another: `mas.policies.<policy>.engines`."""

from __future__ import annotations

from collections.abc import Iterator

from verl_mas.config.adapters import bases
from verl_mas.config.merge import trained
from verl_mas.config.modes import KEY, SEPARATE
from verl_mas.config.placement import local_policies
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError

# A pool for the message of a run whose engines have none.
EXAMPLE = "serve"


def check_apart(run: Run) -> Iterator[ConfigError]:
    """Of a team whose pools exist."""
    apart = {name: spec.engines for name, spec in run.mas.policies.items() if spec.engines}
    if run.mode is not SEPARATE:
        for name, pool in apart.items():
            yield ConfigError(
                f"mas.policies.{name}.engines={pool} with {KEY}={run.config.trainer.v1.trainer_mode}",
                rule="in this mode a policy is served on the GPUs that it trains on",
                fix=f"remove it, or set {KEY}={SEPARATE.name}",
            )
        return
    for name in apart:
        yield from _never_trained(run.mas, name)
    for name in run.trained:
        yield from _trains_apart(run.mas, name)
    yield from _shared_by_both(run.mas)


def _never_trained(mas: MasConfig, name: str) -> Iterator[ConfigError]:
    spec = mas.policies[name]
    if not spec.is_trained and name not in bases(mas):
        where = "" if spec.remote else f", and set ++mas.policies.{name}.pool={spec.engines}"
        yield ConfigError(
            f"mas.policies.{name}.engines={spec.engines} of a policy that is not trained",
            rule="a policy without training processes has its engines on its pool",
            fix=f"remove it{where}",
        )


def _trains_apart(mas: MasConfig, name: str) -> Iterator[ConfigError]:
    spec = mas.policies[name]
    if spec.adapter_of:
        yield ConfigError(
            f"mas.policies.{name}.adapter_of={spec.adapter_of} with {KEY}={SEPARATE.name}",
            rule="verl's transfer between pools sends whole weights, never an adapter",
            fix=f"remove adapter_of: a LoRA of its own with model.lora.merge=True is sent merged; or set {KEY} to "
            "another mode",
        )
    elif spec.engines in (None, spec.pool):
        yield ConfigError(
            f"mas.policies.{name}.engines={spec.engines or 'null'} and pool={spec.pool} with {KEY}={SEPARATE.name}",
            rule="in this mode every trained policy is served on another pool than it trains on",
            fix=f"set ++mas.policies.{name}.engines={EXAMPLE} ++mas.pools.{EXAMPLE}.n_gpus_per_node=1, or another pool",
        )
    for other, snapshot in mas.policies.items():
        if snapshot.snapshot and snapshot.snapshot.of == name:
            yield ConfigError(
                f"mas.policies.{other}.snapshot.of={name} with {KEY}={SEPARATE.name}",
                rule="the training processes of a policy send weights in one way only: in this mode, to its engines",
                fix=f"remove the snapshot, or set {KEY} to another mode",
            )


def _shared_by_both(mas: MasConfig) -> Iterator[ConfigError]:
    training = {mas.policies[name].pool: name for name in trained(mas) if not mas.policies[name].adapter_of}
    for name in local_policies(mas):
        spec = mas.policies[name]
        setting, pool = ("engines", spec.engines) if spec.engines else ("pool", spec.pool)
        of_itself = spec.is_trained and pool == spec.pool
        if pool in training and not of_itself:
            yield ConfigError(
                f"mas.policies.{name}.{setting}={pool}, on which policy {training[pool]} trains",
                rule=f"with {KEY}={SEPARATE.name} engines never free their GPUs for training",
                fix=f"set ++mas.policies.{name}.{setting} to a pool on which no policy trains",
            )
