"""A run: verl's configuration, the team in it, and a view of each policy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.engine_tag import SHARED_PREFIXES, EngineTag
from verl_mas.config.merge import ANY_MODEL, GAE, SECTION, overridden
from verl_mas.config.modes import SEPARATE, Mode, Staleness, mode_of, staleness_of
from verl_mas.config.registry import nearest
from verl_mas.config.schema import DEFAULT_POLICY, DEFAULT_POOL, FreeSettings, MasConfig, PolicySpec, PoolSpec
from verl_mas.config.values import load_dataclass
from verl_mas.errors import ConfigError, raise_all

R = TypeVar("R", bound="Run")
CORRECTION = "algorithm.rollout_correction"
# Settings of the correction that read the engine's log-probs.
READERS = ("rollout_is", "rollout_rs", "bypass_mode")
# verl's policy losses in which a row without advantage has no gradient, so that it can be skipped.
PROPORTIONAL_LOSSES = {"vanilla", "gspo", "sapo", "gpg", "cispo", "dppo_tv", "dppo_kl"}
# Policy losses that may use the update's own log-probs as the old log-probs. kl_cov may not use them: its gradient is
# the sign of the difference between new and old log-probs, so rounding errors would decide the sign.
ON_POLICY_LOSSES = PROPORTIONAL_LOSSES | {"clip_cov", "geo_mean", "dro"}


@dataclass(frozen=True, eq=False)
class Run:
    """A configuration and its `mas` block. Without a team, `mas` has the default values and one policy, verl's
    model."""

    config: DictConfig
    mas: MasConfig

    @classmethod
    def of(cls: type[R], config: DictConfig) -> R:
        mas = load(config.get("mas"))
        return cls(config, serve_apart(mas) if mode_of(config) is SEPARATE else mas)

    @property
    def mode(self) -> Mode | None:
        """The trainer mode; None for a run of verl's own trainers."""
        return mode_of(self.config)

    @property
    def staleness(self) -> Staleness | None:
        return staleness_of(self.config)

    @property
    def ahead(self) -> bool:
        """Whether tasks are dispatched before the step that trains on them, so rows are sampled with older weights."""
        return self.staleness is not None and self.staleness.warmup > 0

    @cached_property
    def trained(self) -> list[str]:
        """The policies that are updated."""
        return [name for name, spec in self.mas.policies.items() if spec.is_trained]

    @property
    def critics(self) -> bool:
        """Whether each updated policy has its own critic."""
        return bool(OmegaConf.select(self.config, "algorithm.adv_estimator") == GAE)

    @property
    def sessions_per_step(self) -> int:
        """Sessions per training step, which is the number of rows of an agent that acts once per session."""
        return int(self.config.data.train_batch_size) * int(self.config[SECTION].rollout.n)

    @cached_property
    def _views(self) -> dict[str, View]:
        return {name: View(self, name, spec) for name, spec in self.mas.policies.items()}

    def view(self, policy: str) -> View:
        return self._views[policy]

    @cached_property
    def _dump(self) -> bytes:
        # Loading the pickle takes 4 ms, but a deep copy of the configuration takes 19 ms.
        return pickle.dumps(self.config)

    def copy(self) -> DictConfig:
        """Return a copy of the configuration as of the first call."""
        config = pickle.loads(self._dump)
        assert isinstance(config, DictConfig)
        return config


@dataclass(frozen=True, eq=False)
class View:
    """A policy of a run, with its own settings."""

    run: Run
    name: str
    spec: PolicySpec

    @cached_property
    def config(self) -> DictConfig:
        """The whole configuration, as if this policy were the only one. It must not be changed; use `copy` instead."""
        return self.copy()

    def copy(self) -> DictConfig:
        view = overridden(self.run.copy(), self.spec)
        if self.spec.is_trained and self.spec.rollout_correction:
            view.algorithm.rollout_correction = self.correction
        if self.run.critics:
            view.critic.model.path = self.critic_path
        EngineTag(self.name).write(view)
        OmegaConf.update(view, f"{SECTION}.rollout.custom.{SHARED_PREFIXES}", self.shared_prefixes, force_add=True)
        return view

    def get(self, key: str) -> Any:
        """Return a value below `actor_rollout_ref`; None if it is not set."""
        own = OmegaConf.select(self._overrides, key)
        return OmegaConf.select(self.run.config, f"{SECTION}.{key}") if own is None else own

    @cached_property
    def _overrides(self) -> DictConfig:
        return OmegaConf.create(self.spec.overrides)

    def value(self, key: str) -> Any:
        """Return a value below `actor_rollout_ref`. Raises ConfigError if it is not set."""
        value = self.get(key)
        if value is None:
            fix = f"set {SECTION}.{key}, or mas.policies.<name>.overrides.{key}"
            raise ConfigError(f"{SECTION}.{key} is not set", rule="every policy that is served here needs it", fix=fix)
        return value

    @cached_property
    def _sections(self) -> dict[str, DictConfig]:
        return {}

    def section(self, name: str) -> DictConfig:
        """Return a section of `actor_rollout_ref` with the policy's overrides. The caller must not change the section.
        This method is much faster than making the whole configuration."""
        if name not in self._sections:
            section = OmegaConf.merge(self.run.config[SECTION][name], self.spec.overrides.get(name) or {})
            assert isinstance(section, DictConfig)
            self._sections[name] = section
        return self._sections[name]

    @property
    def correction(self) -> DictConfig:
        """`algorithm.rollout_correction` of a trained policy."""
        merged = OmegaConf.merge(OmegaConf.select(self.run.config, CORRECTION) or {}, self.spec.rollout_correction)
        assert isinstance(merged, DictConfig)
        return merged

    @property
    def critic_path(self) -> str:
        """Path of the model from which the policy's critic starts, with a new head. It is the policy's own model if
        critic.model.path has verl's default or the same value as actor_rollout_ref.model.path."""
        path = str(self.run.config.critic.model.path)
        return str(self.get("model.path") if path in (ANY_MODEL, self.run.config[SECTION].model.path) else path)

    @property
    def engine(self) -> str:
        return str(self.value("rollout.name"))

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps of the policy per training step."""
        own = self.spec.updates_per_step or self.run.mas.updates_per_step
        if own is not None:
            return own
        mini = int(self.value("actor.ppo_mini_batch_size"))
        return max(1, int(self.run.config.data.train_batch_size) // mini)

    @property
    def on_policy(self) -> bool:
        """Whether the old log-probs need no separate pass, because the policy has a single optimiser step per training
        step and this step computes them. A KL in the reward would need the old log-probs before the update, but a team
        cannot have such a KL."""
        one_step = self.updates_per_step == self.value("actor.ppo_epochs") == 1
        corrects = any(self.correction.get(reader) for reader in READERS)
        exact = self.value("actor.policy_loss.loss_mode") in ON_POLICY_LOSSES
        return one_step and exact and not corrects

    @property
    def old_log_probs_every(self) -> int:
        """Number of steps from one pass for old log-probs to the next. 1 means a pass in every step."""
        return self.run.mas.old_log_probs_every if self.on_policy else 1

    @property
    def old_log_prob_passes(self) -> float:
        """Share of training steps with a forward pass for old log-probs."""
        if self.correction.get("bypass_mode"):
            return 0.0
        return 1 / self.old_log_probs_every if self.run.mode else 1.0  # verl's own trainer makes a pass in every step

    @property
    def proportional(self) -> bool:
        """Whether the policy loss of a row is proportional to the row's advantage."""
        return self.value("actor.policy_loss.loss_mode") in PROPORTIONAL_LOSSES

    @property
    def skips_zero_advantage(self) -> bool:
        """Whether the policy's updates skip rows without advantage."""
        if self.run.mas.skip_zero_advantage != "auto":
            return self.run.mas.skip_zero_advantage
        # A critic learns from every row, and these terms are computed for every row, so no row can be skipped.
        terms = ("use_kl_loss", "entropy_coeff", "calculate_entropy")
        others = self.run.critics or any(self.get(f"actor.{term}") for term in terms)
        return self.updates_per_step == 1 and self.proportional and not others

    @property
    def shared_prefixes(self) -> str | bool | None:
        """The policy's own setting, or the setting of the run if the policy has no own setting."""
        own = self.spec.shared_prefixes
        return self.run.mas.shared_prefixes if own is None else own

    @property
    def shares_prefixes(self) -> bool:
        """Whether training computes a common prefix of several rows only once, if the model allows it."""
        return bool(self.run.config.trainer.device == "cpu" if self.shared_prefixes is None else self.shared_prefixes)


# The functions below read the `mas:` node of a configuration into a `MasConfig`.


# The pool of engines that `+mas/mode=separate_async` makes.
SERVING = "serve"
# Sections of overrides that a snapshot copies from the policy whose weights it takes. The other sections are only for
# training.
SERVED = ("model", "rollout")


def load(node: DictConfig | Mapping[str, object] | None) -> MasConfig:
    """Read the `mas:` block into dataclasses, and add the default policy and pool. Raises ConfigError for wrong
    values."""
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
            spec.shared_prefixes = base.shared_prefixes
    config.pools.setdefault(DEFAULT_POOL, PoolSpec())
    raise_all(_unknown_names(config))
    return config


def _unknown_names(mas: MasConfig) -> Iterator[ConfigError]:
    sources = [name for name, spec in mas.policies.items() if spec.is_trained and not spec.adapter_of]
    for name, spec in mas.policies.items():
        for key, pool in (("pool", spec.pool), ("engines", spec.engines)):
            if pool is not None and pool not in mas.pools:
                value, rule = f"mas.policies.{name}.{key}={pool}", "a policy is on one of mas.pools"
                yield ConfigError(value, rule=rule, fix=nearest(pool, list(mas.pools)))
        if spec.snapshot and spec.snapshot.of not in sources:
            value = f"mas.policies.{name}.snapshot.of={spec.snapshot.of}"
            rule = "a snapshot takes the whole weights of a policy that this run trains"
            yield ConfigError(value, rule=rule, fix=nearest(spec.snapshot.of, sources))


def serve_apart(mas: MasConfig) -> MasConfig:
    """Add a pool for the engines of the trained policies, and for the frozen policies of the default pool. Change
    nothing if a policy names a pool for its engines."""
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
