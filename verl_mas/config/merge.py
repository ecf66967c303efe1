"""What a policy's configuration is: `actor_rollout_ref` with that policy's overrides on top."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_mas.config.engine_tag import EngineTag
from verl_mas.config.schema import MasConfig, PolicySpec
from verl_mas.errors import ConfigError

SECTION = "actor_rollout_ref"
Path = tuple[str, ...]


def policy_view(config: DictConfig, name: str, spec: PolicySpec) -> DictConfig:
    """A copy of the whole configuration as if this policy were the only one."""
    view = _overridden(config, spec)
    EngineTag(name).write(view)
    return view


def _overridden(config: DictConfig, spec: PolicySpec) -> DictConfig:
    view = copy.deepcopy(config)
    with open_dict(view):
        OmegaConf.set_struct(view[SECTION], False)
        view[SECTION] = OmegaConf.merge(view[SECTION], spec.overrides)
    return view


def finalize(config: DictConfig, mas: MasConfig) -> None:
    """Writes into a composed configuration what can no longer be told once verl has resolved it."""
    # The base that followers are compared with is the one that the job will see.
    set_default_tokenizer_model(config, mas)
    materialize_interpolations(config, mas)


def materialize_interpolations(config: DictConfig, mas: MasConfig) -> list[str]:
    """Writes into each policy's overrides what follows from them by interpolation; returns what was added.

    verl resolves all interpolations before it builds the trainer: a `ref` that follows the `actor` would by
    then no longer follow the policy's own actor.
    """
    base = OmegaConf.to_container(config[SECTION], resolve=True, throw_on_missing=False)
    added = []
    for name, spec in mas.policies.items():
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
    """verl reads the data with the tokenizer of `actor_rollout_ref.model`: where every policy has a model of its
    own, that is the first policy's."""
    local = [OmegaConf.create(spec.overrides) for spec in mas.policies.values() if not spec.remote]
    paths = [OmegaConf.select(overrides, "model.path") for overrides in local]
    if paths and None not in paths:
        config[SECTION].model.path = paths[0]


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value of a nested mapping that is no mapping itself; an empty mapping is a value."""
    if not isinstance(tree, dict) or not tree:
        yield path, tree
        return
    for key, value in tree.items():
        yield from leaves(value, (*path, str(key)))


def _at(tree: Any, path: Path) -> Any:
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


def policy_value(config: DictConfig, spec: PolicySpec, key: str) -> Any:
    """One value of a policy's view, without building the view."""
    own = OmegaConf.select(OmegaConf.create(spec.overrides), key)
    value = OmegaConf.select(config, f"{SECTION}.{key}") if own is None else own
    if value is None:
        raise ConfigError(
            f"{SECTION}.{key} is not set",
            rule="every policy needs it",
            fix=f"set {SECTION}.{key}, or mas.policies.<name>.overrides.{key}",
        )
    return value


def trained(mas: MasConfig) -> list[str]:
    """The policies that are updated."""
    return [name for name, spec in mas.policies.items() if spec.trainable and not spec.remote]


def sessions_per_step(config: DictConfig) -> int:
    """The rows of an agent that acts once a session."""
    return int(config.data.train_batch_size) * int(config[SECTION].rollout.n)
