"""From the `mas:` node of a configuration to `MasConfig`."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.schema import DEFAULT_POLICY, DEFAULT_POOL, FreeSettings, MasConfig, PolicySpec, PoolSpec
from verl_mas.config.values import load_dataclass

# The pool of engines that `+mas/mode=separate_async` makes.
SERVING = "serve"
# What a snapshot has as the policy of which it is one. The rest is of the training.
SERVED = ("model", "rollout")


def load(node: DictConfig | Mapping[str, object] | None) -> MasConfig:
    """The `mas:` block as dataclasses, with the default policy and pool added; a value that does not fit is refused."""
    plain = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    config = load_dataclass(MasConfig, plain, "mas")
    if not config.policies:
        config.policies[DEFAULT_POLICY] = PolicySpec()
    for spec in config.policies.values():
        if spec.snapshot and spec.snapshot.of in config.policies:
            source = config.policies[spec.snapshot.of].overrides
            spec.overrides = _merged({key: source[key] for key in SERVED if key in source}, spec.overrides)
    for name in [spec.adapter_of for spec in config.policies.values() if spec.adapter_of]:
        config.policies.setdefault(name, PolicySpec(trainable=False))
    for spec in config.policies.values():
        if spec.adapter_of:
            base = config.policies[spec.adapter_of]
            spec.overrides, spec.pool = _merged(base.overrides, spec.overrides), base.pool
    config.pools.setdefault(DEFAULT_POOL, PoolSpec())
    return config


def serve_apart(mas: MasConfig) -> MasConfig:
    """With one pool that serves every policy, where none names the pool of its engines."""
    served = [spec for spec in mas.policies.values() if not spec.remote and not spec.adapter_of]
    if not any(spec.engines for spec in served):
        mas.pools.setdefault(SERVING, PoolSpec())
        for spec in served:
            if spec.is_trained:
                spec.engines = SERVING
            elif spec.pool == DEFAULT_POOL:
                spec.pool = SERVING
    return mas


def _merged(first: FreeSettings, second: FreeSettings) -> FreeSettings:
    merged = OmegaConf.to_container(OmegaConf.merge(first, second))
    assert isinstance(merged, dict)
    return {str(name): value for name, value in merged.items()}
