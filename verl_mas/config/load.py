"""From the `mas:` node of a configuration to `MasConfig`."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.schema import DEFAULT_POLICY, DEFAULT_POOL, MasConfig, PolicySpec, PoolSpec
from verl_mas.config.values import load_dataclass


def load(node: DictConfig | Mapping[str, object] | None) -> MasConfig:
    """The `mas:` block as dataclasses, with the default policy and pool added; a value that does not fit is refused."""
    plain = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    config = load_dataclass(MasConfig, plain, "mas")
    if not config.policies:
        config.policies[DEFAULT_POLICY] = PolicySpec()
    config.pools.setdefault(DEFAULT_POOL, PoolSpec())
    return config
