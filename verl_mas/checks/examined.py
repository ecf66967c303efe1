"""A run for the checks in `verl_mas.checks.rules`.

Its workflow, agents and policies are created once, and all rules share them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import OmegaConf

from verl_mas.advantage import ESTIMATORS, AdvantageOptions
from verl_mas.advantage.estimator import Estimator
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import local_policies, pool_shape
from verl_mas.config.run import Run, View
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.base import Workflow, agents_of, resolve


@dataclass(frozen=True, eq=False)
class ExaminedRun(Run):
    @cached_property
    def workflow(self) -> Workflow:
        return resolve(self.mas.workflow)

    @cached_property
    def agents(self) -> Mapping[str, ResolvedAgent]:
        """Every agent by name; none in a run without a team."""
        return agents_of(self.mas) if self.mode else {}

    @cached_property
    def asked(self) -> Run:
        """The run as the user wrote it: `serving: auto` is not resolved."""
        return Run.of(self.config) if self.mode else self

    def learners(self, view: View) -> dict[str, ResolvedAgent]:
        """The agents that a policy learns from."""
        return {name: one for name, one in self.agents.items() if one.trainable and view.name in one.policies}

    @cached_property
    def estimator(self) -> Estimator | None:
        """The estimator; None if the run uses an estimator of verl."""
        name = str(self.config.algorithm.adv_estimator)
        return ESTIMATORS[name] if name in ESTIMATORS else None  # noqa: SIM401  # a registry has no get

    @cached_property
    def options(self) -> AdvantageOptions:
        """`mas.advantage`, without the defaults of the estimator."""
        return AdvantageOptions.from_config(self.mas.advantage)

    @property
    def candidates(self) -> int:
        """Number of candidates of an act that branches in training."""
        return self.mas.branch.k if self.mode and self.workflow.branches else 1

    @cached_property
    def learning(self) -> list[View]:
        """The policies that the run updates; none if it only validates."""
        return [] if self.config.trainer.val_only else [self.view(name) for name in self.trained]

    @cached_property
    def served(self) -> list[View]:
        """The policies that the engines of this run serve."""
        return [self.view(name) for name in dict.fromkeys([*local_policies(self.mas), *self.trained])]

    def get(self, key: str) -> Any:
        """A setting of the run; None if it is not set."""
        return OmegaConf.select(self.config, key)

    def gpus(self, view: View) -> int:
        """Number of GPUs that train a policy."""
        return sum(pool_shape(self, view.spec.pool))


def setting(view: View, key: str) -> str:
    """The full name of a policy's setting: in the policy's overrides if it is set there, else in verl's section."""
    own = OmegaConf.select(OmegaConf.create(view.spec.overrides), key) is not None
    return f"mas.policies.{view.name}.overrides.{key}" if own else f"{SECTION}.{key}"


def stated(view: View, *keys: str) -> str:
    """Format settings for a message: `a=1 with b=2`."""
    first, *others = (f"{setting(view, key)}={view.get(key)}" for key in keys)
    return f"{first} with {' and '.join(others)}" if others else first


def parts_of(view: View) -> int:
    """Number of workers among which a sequence is divided."""
    sizes = (view.get(f"actor.{key}ulysses_sequence_parallel_size") for key in ("", "fsdp_config."))
    return max([1, *(size for size in sizes if type(size) is int)])
