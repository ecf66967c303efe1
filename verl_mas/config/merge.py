"""The configuration of a policy: `actor_rollout_ref` and the rollout correction, with what the policy sets merged over
them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_mas.config.engine_tag import EngineTag
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.errors import ConfigError

SECTION = "actor_rollout_ref"
CORRECTION = "algorithm.rollout_correction"
Path = tuple[str, ...]


def policy_view(config: DictConfig, name: str, spec: PolicySpec) -> DictConfig:
    """A copy of the whole configuration as if this policy were the only one."""
    view = _overridden(config, spec)
    if spec.is_trained and spec.rollout_correction:
        view.algorithm.rollout_correction = correction(config, spec)
    EngineTag(name).write(view)
    return view


def correction(config: DictConfig, spec: PolicySpec) -> DictConfig:
    """`algorithm.rollout_correction` as a trained policy has it."""
    merged = OmegaConf.merge(OmegaConf.select(config, CORRECTION) or {}, spec.rollout_correction)
    assert isinstance(merged, DictConfig)
    return merged


def policy_section(config: DictConfig, spec: PolicySpec, name: str) -> DictConfig:
    """A section of `actor_rollout_ref` as a policy has it, much faster than a view of the whole configuration."""
    section = OmegaConf.merge(config[SECTION][name], spec.overrides.get(name) or {})
    assert isinstance(section, DictConfig)
    return section


def own_section(config: DictConfig, name: str) -> str:
    """Where a command sets what is a policy's own. A base that `mas.policies` leaves out is declared, as frozen."""
    declared = OmegaConf.select(config, "mas.policies") or [name]
    return f"{'' if name in declared else f'++mas.policies.{name}.trainable=false '}++mas.policies.{name}.overrides"


def _overridden(config: DictConfig, spec: PolicySpec) -> DictConfig:
    view = copy.deepcopy(config)
    with open_dict(view):
        OmegaConf.set_struct(view[SECTION], False)
        view[SECTION] = OmegaConf.merge(view[SECTION], spec.overrides)
    return view


def finalize(config: DictConfig, mas: MasConfig) -> None:
    """Write into a composed configuration what cannot be derived any more after verl has resolved it."""
    # First, as the overrides are compared with the base configuration that the job will have.
    set_default_tokenizer_model(config, mas)
    materialize_interpolations(config, mas)


def materialize_interpolations(config: DictConfig, mas: MasConfig) -> list[str]:
    """Write into each policy's overrides the values that change with them by interpolation; returns what was added.

    verl resolves all interpolations before it builds the trainer: a `ref` value that refers to the `actor` would then
    have the value of the base, and not of the policy's actor.
    """
    # Also without overrides: a value of the section that cannot be resolved is an error.
    base = OmegaConf.to_container(config[SECTION], resolve=True, throw_on_missing=False)
    added = []
    for name, spec in mas.policies.items():
        if not spec.overrides:
            continue
        written = {path for path, _ in leaves(spec.overrides)}
        view = _overridden(config, spec)[SECTION]
        for path, value in leaves(OmegaConf.to_container(view, resolve=True, throw_on_missing=False)):
            if _at(base, path) == value or any(path[: len(w)] == w for w in written):
                continue
            key = f"mas.policies.{name}.overrides." + ".".join(path)
            OmegaConf.update(config, key, value, force_add=True)
            added.append(f"{key}={value}")
    return added


def set_default_tokenizer_model(config: DictConfig, mas: MasConfig) -> None:
    """verl reads the data with the tokenizer of `actor_rollout_ref.model`: if every policy overrides the model, use the
    model of the first policy."""
    local = [OmegaConf.create(spec.overrides) for spec in mas.policies.values() if not spec.remote]
    paths = [OmegaConf.select(overrides, "model.path") for overrides in local]
    if paths and None not in paths:
        config[SECTION].model.path = paths[0]


def leaves(tree: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Path and value of every leaf of a nested mapping; an empty mapping is a leaf."""
    if not isinstance(tree, dict) or not tree:
        yield path, tree
        return
    for key, value in tree.items():
        yield from leaves(value, (*path, str(key)))


def _at(tree: object, path: Path) -> object:
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return _MISSING
        tree = tree[key]
    return tree


_MISSING = object()


def updates_per_step(config: DictConfig, mas: MasConfig, name: str) -> int:
    """Optimiser steps of a policy in one training step."""
    own = mas.policies[name].updates_per_step or mas.updates_per_step
    if own is not None:
        return own
    mini = int(policy_value(config, mas.policies[name], "actor.ppo_mini_batch_size"))
    return max(1, int(config.data.train_batch_size) // mini)


def optional_policy_value(config: DictConfig, spec: PolicySpec, key: str) -> Any:
    """One value of a policy's view, without a copy of the configuration; None if it is not set."""
    own = OmegaConf.select(OmegaConf.create(spec.overrides), key)
    return OmegaConf.select(config, f"{SECTION}.{key}") if own is None else own


def policy_value(config: DictConfig, spec: PolicySpec, key: str) -> Any:
    """One value of a policy's view, which must be set."""
    value = optional_policy_value(config, spec, key)
    if value is None:
        raise ConfigError(
            f"{SECTION}.{key} is not set",
            rule="every policy that is served here needs it",
            fix=f"set {SECTION}.{key}, or mas.policies.<name>.overrides.{key}",
        )
    return value


def trained(mas: MasConfig) -> list[str]:
    """The policies that are updated."""
    return [name for name, spec in mas.policies.items() if spec.is_trained]


def snapshots(mas: MasConfig) -> list[str]:
    """The policies that have the weights of another one at an earlier step."""
    return [name for name, spec in mas.policies.items() if spec.snapshot]


def snapshot_sources(mas: MasConfig) -> set[str]:
    """The policies whose weights snapshots take."""
    return {spec.snapshot.of for spec in mas.policies.values() if spec.snapshot}


def sessions_per_step(config: DictConfig) -> int:
    """Sessions of one training step: the rows of an agent that acts once per session."""
    return int(config.data.train_batch_size) * int(config[SECTION].rollout.n)
