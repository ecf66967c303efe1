"""The choices that the papers leave open, each with its default and the reason for it. Loads no torch."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from verl_mas.errors import ConfigError
from verl_mas.registry import nearest

Deviation = Literal["sample", "population"]
GroupOfOne = Literal["zero", "raw"]
Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["std", "none", "batch_std"]
Weighting = Literal["per_act", "per_session", "per_token"]


@dataclass(frozen=True)
class AdvantageOptions:
    """The `mas.advantage` block. None is the default of the chosen estimator."""

    # Divide by N-1 (sample) as verl and both papers' code do, though Dr. MAS's text writes 1/N (population).
    deviation: Deviation = "sample"
    # verl's epsilon, added to the deviation.
    eps: float = 1e-6
    # A lone score has no baseline, so it teaches nothing. `raw` (verl, Dr. MAS's code) would use the score itself.
    group_of_one: GroupOfOne = "zero"
    # mean: over the whole group. leave_one_out: over the group without the row's own session, hence unbiased.
    baseline: Baseline | None = None
    # std: the group's deviation. batch_std: the deviation of all of the agent's scores in the step. none: 1.
    scale: Scale | None = None
    # per_act: every act counts once. per_session: an agent's acts in one session count once together.
    # per_token: an act counts as often as it has trained tokens.
    weighting: Weighting | None = None
    # at_grpo: the K that every group of branches must have. None: any size.
    group_size: int | None = None
    # agent_gigpo: weight of the step advantage, and discount per act of the session's reward in it.
    step_weight: float | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise _refused(name, getattr(self, name), f"one of {', '.join(map(str, allowed))}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise _refused(name, value, f"a number from {low} to {high}")
        if self.group_size is not None and not isinstance(self.group_size, int):
            raise _refused("group_size", self.group_size, "a whole number")

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> AdvantageOptions:
        """The options of a `mas.advantage` mapping; an unknown key is refused."""
        known = [f.name for f in fields(cls)]
        for key in config or {}:
            if key not in known:
                raise ConfigError(f"mas.advantage.{key}", rule="no such option", fix=nearest(str(key), known))
        return cls(**{str(key): value for key, value in (config or {}).items()})

    def resolved(self, estimator: str, defaults: Mapping[str, Any]) -> AdvantageOptions:
        """These options with the estimator's own defaults where nothing was chosen."""
        for name in _OWN_TO_ESTIMATORS - set(defaults):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"mas.advantage.{name}={getattr(self, name)}",
                    rule=f"{estimator} does not read {name}",
                    fix="remove it, or choose the estimator that reads it",
                )
        chosen = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(self, **{**_COMMON, **defaults, **chosen})


_COMMON = {"baseline": "mean", "scale": "std", "weighting": "per_act"}
_OWN_TO_ESTIMATORS = {"group_size", "step_weight", "gamma"}
_RANGES = {
    "eps": (0.0, 1.0),
    "group_size": (1, 1_000_000),
    "step_weight": (0.0, 1e6),
    "gamma": (0.0, 1.0),
}
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "deviation": typing.get_args(Deviation),
    "group_of_one": typing.get_args(GroupOfOne),
    "baseline": (*typing.get_args(Baseline), None),
    "scale": (*typing.get_args(Scale), None),
    "weighting": (*typing.get_args(Weighting), None),
}


def _refused(name: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"mas.advantage.{name}={value!r}", rule=f"must be {allowed}", fix=f"choose {allowed}")
