"""Options of estimators that papers leave open, each with its default and the reason. This module does not import
torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from verl_mas.config.values import Count, NotNegative, Positive, Share, check_fields, load_dataclass
from verl_mas.errors import ConfigError


@dataclass(frozen=True)
class AdvantageOptions:
    """The `mas.advantage` block. null means the default of the chosen estimator."""

    by: Literal["agent", "role"] = "agent"
    """Unit of comparison: each agent, or all agents of a role together, such as equal debaters."""

    deviation: Literal["sample", "population"] = "sample"
    """Divide by N-1 (sample), as verl and the code of Dr. MAS and AT-GRPO do, or by N (population), as in Dr. MAS's
    text."""

    eps: Share = 1e-6
    """verl's epsilon, added to the deviation."""

    group_of_one: Literal["zero", "raw"] = "zero"
    """A lone score has no baseline, so its advantage is 0. `raw` (verl, Dr. MAS's code) uses the score itself."""

    baseline: Literal["mean", "leave_one_out", "best_other"] | None = None
    """mean: the mean over the whole group. leave_one_out: the mean over the group without the row's own session, hence
    unbiased. best_other: the best score of another session, below which an act has advantage 0 (pass@k)."""

    scale: Literal["std", "none", "batch_std"] | None = None
    """std: the group's deviation. batch_std: the deviation of all of the agent's scores in the step. none: 1."""

    weighting: Literal["per_act", "per_invocation", "per_session", "per_token"] | None = None
    """per_act: every act counts once, but a conversation is one row, so its acts count once together. per_invocation:
    the acts of one instance of an agent count once together. per_session: an agent's acts in one session count once
    together. per_token: an act counts as often as it has trained tokens."""

    group_size: Count | None = None
    """at_grpo: the K that every group of branches must have. null: any size."""

    step_weight: NotNegative | None = None
    """agent_gigpo: weight of the step advantage."""

    gamma: Share | None = None
    """Discount per act of the agent. agent_gigpo: it discounts the session's reward and own rewards in the step
    advantage. agent_grpo, agent_rloo, agent_gdpo: an own reward also counts, discounted, for the agent's earlier acts
    in the session; null: it counts for its act alone."""

    penalty_weight: NotNegative | None = None
    """agent_gdpo: weight of the normalised penalty, in addition to the weights in mas.reward."""

    session_mean: bool | None = None
    """team_grpo: score an act by the mean over its session's acts, as the GRPO arm of Dr. MAS's code does."""

    main: str | None = None
    """hierarchical_grpo, rao: the main agent, which calls the other agents. Its acts in a session are one invocation.
    Required."""

    shrinkage: Positive | None = None
    """agent_grpo, agent_rloo: the largest number of pseudo-acts (or pseudo-units, see `weighting`) that are added to
    every group. Their mean and deviation are the role's running values from earlier steps. null: none."""

    decay: Share | None = None
    """agent_rae, and shrinkage: factor on the weight of a role's earlier scores at each step in which the role acts."""

    def __post_init__(self) -> None:
        check_fields(self, PATH)
        if self.shrinkage is not None and self.gamma is not None:
            rule = "running scores are those of acts without what followed them, and gamma adds that"
            value = f"{PATH}.gamma={self.gamma} with shrinkage={self.shrinkage}"
            raise ConfigError(value, rule=rule, fix="remove one of the two")

    @classmethod
    def from_config(cls, config: Mapping[str, object] | None) -> AdvantageOptions:
        """Read a `mas.advantage` mapping. Raises ConfigError for an unknown key."""
        return load_dataclass(cls, config, PATH)

    def resolved(self, estimator: str, defaults: Mapping[str, object]) -> AdvantageOptions:
        """Replace every option that is null by the estimator's default."""
        common = {name for name in _COMMON if defaults.get(name, _COMMON[name]) is None}
        for name in sorted((_OWN_TO_ESTIMATORS - set(defaults)) | common):
            if getattr(self, name) is not None:
                value, rule = f"mas.advantage.{name}={getattr(self, name)}", f"{estimator} does not read {name}"
                raise ConfigError(value, rule=rule, fix="remove it, or choose the estimator that reads it")
        if self.decay is not None and "shrinkage" in defaults and self.shrinkage is None:
            rule = f"{estimator} keeps running scores for shrinkage only"
            fix = "set ++mas.advantage.shrinkage=2, or remove decay"
            raise ConfigError(f"mas.advantage.decay={self.decay}", rule=rule, fix=fix)
        remembers = "decay" in defaults and ("shrinkage" not in defaults or self.shrinkage is not None)
        for name, value in (("scale", "batch_std"), ("baseline", "best_other")):
            if remembers and getattr(self, name) == value:
                rule = f"{estimator} compares with running scores: neither a deviation of one step nor a best of them"
                raise ConfigError(f"{PATH}.{name}={value}", rule=rule, fix=f"remove {PATH}.{name}")
        chosen = {name: value for name, value in asdict(self).items() if value is not None}
        resolved = {**_COMMON, **defaults, **chosen}
        for name, value in resolved.items():
            if value is REQUIRED:
                rule = f"{estimator} needs it, and no value of it fits every team"
                raise ConfigError(f"mas.advantage.{name} is not set", rule=rule, fix=f"set ++mas.advantage.{name}")
        return replace(self, **resolved)


PATH = "mas.advantage"
_COMMON = {"baseline": "mean", "scale": "std", "weighting": "per_act"}
_OWN_TO_ESTIMATORS = {option.name for option in fields(AdvantageOptions) if option.default is None} - set(_COMMON)
# Default of an option that the user must set.
REQUIRED = object()
