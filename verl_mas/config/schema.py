"""The `mas:` block: types, meaning and ranges. Values live in YAML; this module loads neither torch nor ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

# The policy of a run that names none, and the pool of a policy that names none.
DEFAULT_POLICY = "main"
DEFAULT_POOL = "shared"


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number, checked by `load`."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"between {self.low:g} and {self.high:g}"
        return f"at least {self.low:g}" if self.low is not None else f"at most {self.high:g}"


Count = Annotated[int, Range(1)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


@dataclass
class WorkflowSpec:
    """Which workflow runs, and the values of its own fields."""

    name: str = "single"
    # A Python file or module of your own: `name` may be a class in it.
    path: str | None = None
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class AgentSpec:
    """`mas.agents.<name>`: settings of an agent, or of all agents of a role."""

    policy: str = DEFAULT_POLICY
    # Agents of one role share instructions; `ensemble` makes `reasoner_0..N` of role `reasoner`.
    role: str | None = None
    system_prompt: str | None = None
    # Merged over the rollout's sampling settings: temperature, top_p, top_k, max_tokens, stop. In validation
    # temperature, top_p and top_k stay those of `rollout.val_kwargs`, unless `validation_sampling` says otherwise.
    sampling: dict[str, Any] = field(default_factory=dict)
    validation_sampling: dict[str, Any] = field(default_factory=dict)
    # Names of verl's tools (rollout.multi_turn.tool_config_path / function_tool_path) this agent may call.
    tools: list[str] = field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    # Tokens. None: what the engine's context leaves after the response.
    max_prompt_length: Count | None = None
    # What to do with a prompt over that length. Never silently the left end.
    truncation: Literal["error", "drop_oldest", "middle"] = "error"
    # Subtracted from the score of an act whose reply was malformed.
    format_penalty: NotNegative = 0.0
    # False: the agent acts on a trainable policy but its rows are left out of the loss.
    trainable: bool = True


@dataclass
class PolicySpec:
    """One LLM with its weights. `overrides` is merged over `actor_rollout_ref`."""

    # False: served from its checkpoint, never updated, no optimiser memory.
    trainable: bool = True
    pool: str = DEFAULT_POOL
    # An OpenAI-compatible endpoint makes the policy remote: {base_url, model, api_key_env, timeout}.
    remote: dict[str, Any] | None = None
    # None: the team's.
    updates_per_step: Count | None = None
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass
class PoolSpec:
    """A set of GPUs. None: as many as `trainer` says."""

    nnodes: Count | None = None
    n_gpus_per_node: Count | None = None
    # Engines of the pool: all awake together (their memory fractions add up to at most 1), or woken in
    # phases, one policy at a time (each may then take the whole fraction).
    serving: Literal["together", "phases"] = "together"
    # Parameters and optimiser of a policy leave the GPU while its neighbours work.
    offload: bool = True


@dataclass
class BranchSpec:
    """`mas.branch`: K candidates from one prompt, and the rule that commits one of them."""

    k: Count = 1
    validation_k: Count = 1
    # The commit rule: greedy, softmax, uniform, first, or one of your own.
    commit: str = "greedy"
    temperature: NotNegative = 1.0


@dataclass
class RewardSpec:
    """A row's score is team * Outcome.reward + local * reply.reward - penalty.

    A preset is a paper's choice of the three values; a value that is given wins over it.
    sum: 1, 1, act. dr_mas: 1, 0, act. at_grpo: 1, 1, none (its format term is part of the local reward).
    sparse: 1, 0, none.
    """

    preset: Literal["sum", "dr_mas", "at_grpo", "sparse"] = "sum"
    team: float | None = None
    local: float | None = None
    # Which rows a malformed act's penalty lands on: that act, every act of its agent, every act of the session.
    penalty_on: Literal["act", "agent", "session", "none"] | None = None

    def __post_init__(self) -> None:
        team, local, penalty_on = _REWARD_PRESETS[self.preset]
        self.team = team if self.team is None else self.team
        self.local = local if self.local is None else self.local
        self.penalty_on = penalty_on if self.penalty_on is None else self.penalty_on


_REWARD_PRESETS: dict[str, tuple[float, float, Literal["act", "agent", "session", "none"]]] = {
    "sum": (1.0, 1.0, "act"),
    "dr_mas": (1.0, 0.0, "act"),
    "at_grpo": (1.0, 1.0, "none"),
    "sparse": (1.0, 0.0, "none"),
}


@dataclass
class FaultSpec:
    """`mas.faults`: what happens to a session when an act or the workflow fails."""

    then: Literal["drop_session", "fail_group"] = "drop_session"
    retries: Annotated[int, Range(0)] = 1
    backoff_s: NotNegative = 0.5
    act_timeout_s: NotNegative = 600.0
    session_timeout_s: NotNegative = 3600.0
    max_acts: Count = 256


@dataclass
class TrajectorySpec:
    """JSON lines on disk, one per session. `dir` None: <trainer.default_local_dir>/trajectories."""

    enabled: bool = True
    dir: str | None = None
    sampling_rate: Share = 1.0
    max_text_chars: Count | None = None


@dataclass
class MasConfig:
    """The whole `mas:` block."""

    # Python files and modules of your own that register workflows, estimators, puzzles, graders, executors, commit
    # rules or engines. Loaded before the checks, in every agent-loop worker and in the trainer.
    plugins: list[str] = field(default_factory=list)
    workflow: WorkflowSpec = field(default_factory=WorkflowSpec)
    agents: dict[str, AgentSpec] = field(default_factory=dict)
    # None or empty: one policy `main`, which is `actor_rollout_ref` as it stands.
    policies: dict[str, PolicySpec] = field(default_factory=dict)
    pools: dict[str, PoolSpec] = field(default_factory=dict)
    branch: BranchSpec = field(default_factory=BranchSpec)
    reward: RewardSpec = field(default_factory=RewardSpec)
    # Options of the advantage kernel; verl_mas.advantage documents them.
    advantage: dict[str, Any] = field(default_factory=dict)
    faults: FaultSpec = field(default_factory=FaultSpec)
    trajectories: TrajectorySpec = field(default_factory=TrajectorySpec)
    # Optimiser steps per policy and training step, whatever the number of rows.
    # None: data.train_batch_size / actor.ppo_mini_batch_size, what verl does with one row a session.
    updates_per_step: Count | None = None
    # Leave rows of exactly zero advantage out of the update, the loss normalised as if they were there.
    skip_zero_advantage: bool = False
