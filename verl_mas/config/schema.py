"""The `mas:` block: types, meaning and ranges. Values live in YAML; this module loads neither torch nor ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from verl_mas.config.values import Above, Count, NotNegative, Positive, Range, Share, Text, check_fields

# The policy of a run that names none, and the pool of a policy that names none.
DEFAULT_POLICY = "main"
DEFAULT_POOL = "shared"


class Checked:
    """Base of the parts that code, too, constructs: each refuses a value that its field does not take."""

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)


@dataclass
class WorkflowSpec:
    """Which workflow runs, and the values of its own fields."""

    name: str = "single"
    """A workflow that is registered, or a class in the file at `path`."""

    path: str | None = None
    """A Python file or module of your own: `name` may be a class in it."""

    args: dict[str, Any] = field(default_factory=dict)
    """The workflow's own fields; they have the types, ranges and defaults that its class declares."""


class Sampling(TypedDict, total=False):
    """What an agent changes of the rollout's sampling settings."""

    temperature: NotNegative
    """0: greedy. The row's temperature reaches the trainer."""

    top_p: Annotated[float, Above(0), Range(high=1)]
    """Sample from the most probable tokens that add up to this share."""

    top_k: Literal[-1] | Count
    """Sample from this many most probable tokens; -1: from all."""

    min_p: Share
    """Leave out tokens less probable than this share of the most probable one."""

    max_tokens: Count
    """The longest reply."""

    stop: str | list[str]
    """Texts that end a reply."""

    stop_token_ids: list[Annotated[int, Range(0)]]
    """Tokens that end a reply."""

    ignore_eos: bool
    """Whether a reply continues after the end-of-sequence token."""

    seed: int
    """Of the request; every reply to one prompt is then the same."""

    repetition_penalty: Positive
    """1: none. Refused for an agent that trains, as the trainer's log-probs do not know it."""

    presence_penalty: Annotated[float, Range(-2, 2)]
    """0: none. Refused for an agent that trains."""

    frequency_penalty: Annotated[float, Range(-2, 2)]
    """0: none. Refused for an agent that trains."""

    extra: dict[str, Any]
    """Settings of one engine or endpoint by its own names, passed on as they are: `{min_tokens: 4}` for vLLM."""


@dataclass
class AgentSpec(Checked):
    """`mas.agents.<name>`: settings of an agent, or of all agents of a role."""

    policy: str = DEFAULT_POLICY
    """The policy of `mas.policies` on which it acts."""

    role: str | None = None
    """Agents of one role share instructions; `ensemble` makes `reasoner_0..N` of role `reasoner`."""

    system_prompt: str | None = None
    """Replaces the system prompt of the workflow."""

    sampling: Sampling = field(default_factory=Sampling)
    """Merged over the rollout's sampling settings. In validation temperature, top_p and top_k stay those of
    `rollout.val_kwargs`, unless `validation_sampling` sets them."""

    validation_sampling: Sampling = field(default_factory=Sampling)
    """Merged over `sampling` in validation."""

    tools: list[str] = field(default_factory=list)
    """Names of verl's tools (rollout.multi_turn.tool_config_path / function_tool_path) this agent may call."""

    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking`."""

    max_prompt_length: Count | None = None
    """Tokens. null: what the engine's context leaves after the response."""

    truncation: Literal["error", "drop_oldest", "middle"] = "error"
    """What to do with a prompt over that length. Never silently the left end."""

    format_penalty: NotNegative = 0.0
    """Subtracted from the score of an act whose reply was malformed."""

    trainable: bool = True
    """false: the agent acts on a trainable policy but its rows are left out of the loss."""


@dataclass
class RemoteSpec(Checked):
    """An OpenAI-compatible endpoint."""

    base_url: Text
    """The address before `/chat/completions`, such as http://host:8000/v1."""

    model: Text
    """The model's name there."""

    api_key_env: str | None = None
    """The environment variable that holds the key. null: no key is sent."""

    timeout: Positive = 600.0
    """Seconds that a request may take."""

    concurrency: Count = 256
    """Connections per rollout worker."""


@dataclass
class PolicySpec:
    """One LLM with its weights."""

    trainable: bool = True
    """false: served from its checkpoint, never updated, no optimiser memory."""

    pool: str = DEFAULT_POOL
    """The pool of `mas.pools` on whose GPUs it lives."""

    remote: RemoteSpec | None = None
    """An endpoint makes the policy remote: it is never trained and has no GPU here."""

    updates_per_step: Count | None = None
    """Optimiser steps per training step. null: `mas.updates_per_step`."""

    overrides: dict[str, Any] = field(default_factory=dict)
    """Merged over `actor_rollout_ref`."""


@dataclass
class PoolSpec:
    """A set of GPUs."""

    nnodes: Count | None = None
    """null: those of `trainer` for the pool `shared`, else 1."""

    n_gpus_per_node: Count | None = None
    """null: as many as `trainer` says."""

    serving: Literal["together", "phases"] = "together"
    """Engines of the pool: all awake together (their memory fractions add up to at most 1), or woken in
    phases, one policy at a time (each may then take the whole fraction)."""

    offload: bool = True
    """Parameters and optimiser of a policy leave the GPU while its neighbours work."""


@dataclass
class BranchSpec(Checked):
    """`mas.branch`: K candidates from one prompt, and the rule that commits one of them."""

    k: Count = 1
    """Candidates per prompt."""

    validation_k: Count = 1
    """Candidates per prompt in validation."""

    commit: str = "greedy"
    """The commit rule: greedy, softmax, uniform, first, or one of your own."""

    temperature: Positive = 1.0
    """Of the commit rule softmax."""


@dataclass
class RewardSpec(Checked):
    """A row's score is team * Outcome.reward + local * reply.reward - penalty.

    A preset is a paper's choice of the three values; a value that is given wins over it.
    sum: 1, 1, act. dr_mas: 1, 0, act. at_grpo: 1, 1, none (its format term is part of the local reward).
    sparse: 1, 0, none.
    """

    preset: Literal["sum", "dr_mas", "at_grpo", "sparse"] = "sum"
    """The values of the three settings below where they are null."""

    team: float | None = None
    """Weight of the session's reward."""

    local: float | None = None
    """Weight of the act's own reward."""

    penalty_on: Literal["act", "agent", "session", "none"] | None = None
    """Which rows a malformed act's penalty lands on: that act, every act of its agent, every act of the session."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
class FaultSpec(Checked):
    """`mas.faults`: what happens to a session when an act or the workflow fails."""

    then: Literal["drop_session", "fail_group"] = "drop_session"
    """Leave the session out, or every session of its task."""

    retries: Annotated[int, Range(0)] = 1
    """Further attempts of a session that failed."""

    backoff_s: NotNegative = 0.5
    """Seconds before the first retry; each further one waits twice as long."""

    act_timeout_s: NotNegative = 600.0
    """Seconds that an act may take."""

    session_timeout_s: NotNegative = 3600.0
    """Seconds that a session may take."""

    max_acts: Count = 256
    """Acts that a session may make."""


@dataclass
class TrajectorySpec:
    """JSON lines on disk, one per session."""

    enabled: bool = True
    """Whether sessions are written."""

    dir: str | None = None
    """null: <trainer.default_local_dir>/trajectories."""

    sampling_rate: Share = 1.0
    """The share of sessions that is written; the same ones in every run."""

    max_text_chars: Count | None = None
    """Longer texts are clipped to this length."""


@dataclass
class MasConfig:
    """The whole `mas:` block."""

    plugins: list[str] = field(default_factory=list)
    """Python files and modules of your own that register workflows, estimators, puzzles, graders, executors, commit
    rules or engines. Loaded before the checks, in every agent-loop worker and in the trainer."""

    workflow: WorkflowSpec = field(default_factory=WorkflowSpec)

    agents: dict[str, AgentSpec] = field(default_factory=dict)
    """Settings by the name or the role of an agent of the workflow."""

    policies: dict[str, PolicySpec] = field(default_factory=dict)
    """null or empty: one policy `main`, which is `actor_rollout_ref` as it is."""

    pools: dict[str, PoolSpec] = field(default_factory=dict)
    """Sets of GPUs by name; `shared` is always there."""

    branch: BranchSpec = field(default_factory=BranchSpec)

    reward: RewardSpec = field(default_factory=RewardSpec)

    advantage: dict[str, Any] = field(default_factory=dict)
    """Options of the advantage estimator."""

    faults: FaultSpec = field(default_factory=FaultSpec)

    trajectories: TrajectorySpec = field(default_factory=TrajectorySpec)

    updates_per_step: Count | None = None
    """Optimiser steps per policy and training step, whatever the number of rows.
    null: data.train_batch_size / actor.ppo_mini_batch_size, what verl does with one row per session."""

    skip_zero_advantage: bool = False
    """Leave rows of exactly zero advantage out of the update, the loss normalised as if they were there."""
