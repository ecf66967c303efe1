"""The `mas:` block: types, meanings, ranges and defaults. This module imports neither torch nor ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from verl_mas.config.mcp import McpSpec
from verl_mas.config.sampling import Sampling
from verl_mas.config.values import Above, Checked, Count, NotNegative, Positive, Range, Share, Text
from verl_mas.errors import ConfigError
from verl_mas.verl_.types import Fields

# Settings that verl, an engine, a chat template or a workflow defines.
FreeSettings: TypeAlias = Fields
Weighting: TypeAlias = Literal["row", "agent", "agent_token", "session", "token"]
# Names of the policy and of the pool that are used if a run names none.
DEFAULT_POLICY = "main"
DEFAULT_POOL = "shared"


@dataclass
class WorkflowSpec:
    """The workflow that runs, and the values of its fields."""

    name: str = "single"
    """A registered workflow, or a class in the file at `path`."""

    path: str | None = None
    """A Python file or module; `name` may be a class in it."""

    args: FreeSettings = field(default_factory=dict)
    """Values of the workflow's fields; its class declares their types, ranges and defaults."""

    check_timeout_s: Positive = 60.0
    """Time limit in seconds for loading the user's files and for the workflow's `check`, before a run starts."""


@dataclass
class AgentSpec(Checked):
    """`mas.agents.<name>`: settings of an agent, or of all agents of a role."""

    policy: str = DEFAULT_POLICY
    """The policy of `mas.policies` that generates the agent's replies."""

    role: str | None = None
    """Agents of one role share settings. For example, the workflow `ensemble` has agents `reasoner_0..N` of role
    `reasoner`."""

    system_prompt: str | None = None
    """Replaces the system prompt of the workflow."""

    sampling: Sampling = field(default_factory=Sampling)
    """Merged over the rollout's sampling settings. In validation, temperature, top_p and top_k come from
    `rollout.val_kwargs` instead, unless `validation_sampling` sets them."""

    validation_sampling: Sampling = field(default_factory=Sampling)
    """Merged over `sampling` in validation."""

    tools: list[str] = field(default_factory=list)
    """Names of the tools that the agent may call. They come from rollout.multi_turn.tool_config_path and
    function_tool_path, and from the servers of `mas.mcp`."""

    tool_timeout_s: Positive = 60.0
    """Time limit in seconds for a call of a tool. The time of tool calls does not count towards
    `mas.faults.act_timeout_s`."""

    max_tool_rounds: Count = 16
    """How often an act may call tools and generate again. A further call ends the act."""

    max_tool_calls: Count = 64
    """Maximum number of tool calls per act. Further calls are answered with an error."""

    chat_template_kwargs: FreeSettings = field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking`."""

    max_prompt_length: Count | None = None
    """Longest prompt in tokens, at most data.max_prompt_length. null: data.max_prompt_length."""

    truncation: Literal["error", "drop_oldest", "middle"] = "error"
    """Action on a prompt longer than `max_prompt_length`: fail, drop the oldest messages, or cut out the middle."""

    format_penalty: NotNegative = 0.0
    """Subtracted from the score of an act whose reply was malformed."""

    trainable: bool = True
    """false: the agent's rows are excluded from the loss, even if its policy is trained."""


@dataclass
class SwapSpec(Checked):
    """`mas.swap`: agents that exchange their policies during training, as in CORY."""

    agents: list[str] = field(default_factory=list)
    """Two or more agents, each with its own policy, which exchange their policies in turn. In validation each agent
    has the policy that is configured for it. Empty: no exchange."""

    every: Count = 5
    """Training steps between two exchanges."""


@dataclass
class RemoteSpec(Checked):
    """An OpenAI-compatible endpoint."""

    base_url: Text
    """The address before `/chat/completions`, such as http://host:8000/v1."""

    model: Text
    """The name of the model at the endpoint."""

    api_key_env: str | None = None
    """The environment variable with the key. null: no key is sent."""

    timeout: Positive = 600.0
    """Time limit in seconds for a request."""

    concurrency: Count = 256
    """Maximum number of concurrent requests per agent-loop worker."""


@dataclass
class SnapshotSpec(Checked):
    """`mas.policies.<name>.snapshot`: an earlier state of a trained policy, such as an opponent in self-play."""

    of: Text
    """The trained policy whose weights the snapshot takes. Both policies start with the same weights."""

    every: Count
    """Steps between two refreshes."""

    first: Count | None = None
    """The step of the first refresh. null: `every`. To keep the last K states, refresh K snapshots in turn (every:
    K * N, first: N, 2 * N, ...)."""

    def due(self, step: int) -> bool:
        """Whether the snapshot takes the weights that the trained policy has after this step."""
        first = self.first or self.every
        return step >= first and (step - first) % self.every == 0


@dataclass
class PolicySpec:
    """One LLM with its weights."""

    trainable: bool = True
    """false: served from its model path, never updated, without optimiser memory."""

    snapshot: SnapshotSpec | None = None
    """Gives this policy the weights of a trained policy at an earlier step, and the trained policy's overrides of model
    and rollout."""

    pool: str = DEFAULT_POOL
    """The pool of `mas.pools` whose GPUs the policy uses."""

    remote: RemoteSpec | None = None
    """An endpoint that serves the policy. A remote policy is never trained and uses no GPU of the run."""

    adapter_of: str | None = None
    """Makes this policy a LoRA adapter on the weights of the named policy. The named policy is the base and is never
    trained. A base that is not in `mas.policies` is added."""

    engines: str | None = None
    """The pool whose GPUs serve the policy while the GPUs of `pool` train it, in trainer mode mas_separate_async. If no
    policy sets it, a pool named `serve` is used."""

    updates_per_step: Count | None = None
    """Optimiser steps per training step. null: `mas.updates_per_step`."""

    shared_prefixes: Literal["auto"] | bool | None = None
    """null: `mas.shared_prefixes`. An adapter has the value of its base."""

    rollout_correction: FreeSettings = field(default_factory=dict)
    """Merged over `algorithm.rollout_correction` if the policy is trained."""

    overrides: FreeSettings = field(default_factory=dict)
    """Merged over `actor_rollout_ref`."""

    def __post_init__(self) -> None:
        sources = [name for name in ("snapshot", "remote", "adapter_of") if getattr(self, name) is not None]
        if len(sources) > 1:
            rule = "the weights of a policy come from one source: a snapshot, an endpoint, or an adapter on a base"
            raise ConfigError(f"a policy with {' and '.join(sources)}", rule=rule, fix=f"keep one of {sources}")
        if self.remote is not None and self.overrides:
            rule = "a remote policy has no model, engine or optimiser here"
            fix = "remove the overrides; sampling belongs to mas.agents.<agent>.sampling"
            raise ConfigError(f"a remote policy with overrides {self.overrides}", rule=rule, fix=fix)

    @property
    def is_trained(self) -> bool:
        """Whether the policy has an optimiser. Frozen policies, remote policies and snapshots have no optimiser."""
        return self.trainable and self.remote is None and self.snapshot is None


@dataclass
class PoolSpec:
    """A set of GPUs."""

    nnodes: Count | None = None
    """Nodes. null: trainer.nnodes for the pool `shared`, else 1."""

    n_gpus_per_node: Count | None = None
    """GPUs per node. null: trainer.n_gpus_per_node."""

    serving: Literal["auto", "together", "phases"] = "auto"
    """together: all engines of the pool are awake and share the memory of the GPU. phases: only the engines of one
    policy are awake at any time. auto: together if the memory fractions add up to at most 0.85 and a replica has one
    GPU, else phases."""

    offload: bool = True
    """Move parameters and optimiser of a policy off the GPU while other policies of the pool use it."""


@dataclass
class BranchSpec(Checked):
    """`mas.branch`: K candidates from one prompt, and the rule that commits one of them."""

    k: Count = 1
    """Candidates per prompt."""

    validation_k: Count = 1
    """Candidates per prompt in validation."""

    commit: str = "greedy"
    """The commit rule: greedy, softmax, uniform, first, or one of `mas.plugins` or an installed package."""

    temperature: Positive = 1.0
    """Temperature of the commit rule softmax."""


@dataclass
class RewardSpec(Checked):
    """A row's score is team * Outcome.reward + local * reply.reward - penalty.

    A preset sets `team`, `local` and `penalty_on` as in a paper; a value that the user sets overrides the preset.
    sum: 1, 1, act. dr_mas: 1, 0, act. sparse: 1, 0, none. at_grpo: 1, 1, none (its local reward includes the format).
    """

    preset: Literal["sum", "dr_mas", "at_grpo", "sparse"] = "sum"
    """Gives the values of `team`, `local` and `penalty_on` that are null."""

    team: float | None = None
    """Weight of the session's reward."""

    local: float | None = None
    """Weight of the act's own reward."""

    penalty_on: Literal["act", "agent", "session", "none"] | None = None
    """The rows that get the penalty of a malformed act: the row of that act, all rows of its agent in the session, all
    rows of the session, or no rows."""

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
class LossSpec:
    """The loss of each policy. For the weighting of statistics, see `mas.advantage.weighting`."""

    weighting: Weighting | None = None
    """The units with equal weight in the loss of a policy: tokens, rows, agents (and within an agent its rows or, with
    agent_token, its tokens), or sessions (and within a session its rows). Within a row, tokens count equally. null:
    verl's actor.loss_agg_mode; its mean over tokens depends on which rows share an optimiser step."""


@dataclass
class FilterSpec(Checked):
    """`mas.filter`: the tasks of a step that are trained on. A task is kept or dropped with all of its sessions."""

    drop: Literal["uniform"] | None = None
    """uniform: drop tasks in which no trained row has an advantage, because all groups are uniform (DAPO)."""

    by: Literal["score", "team", "acc"] = "score"
    """Value that is compared. score: the scores of rows, in the groups of the estimator; a task is kept even if its
    scores differ only by the penalty or the own reward of a single row. team: the team rewards of the task's sessions.
    acc: the accuracies of the task's sessions, as in DAPO's code."""

    keep_share: Annotated[float, Above(0), Range(high=1)] | None = None
    """Keep this share of the tasks: those with the largest standard deviation of the team rewards of their sessions
    (StarPO-S). null: all."""

    refill: bool = False
    """Sample further tasks until data.train_batch_size tasks are kept. false: train on the tasks that are left."""

    max_rounds: Annotated[int, Range(2, 1000)] = 10
    """Maximum number of sampling rounds per step with `refill`, including the first round."""

    @property
    def active(self) -> bool:
        return self.drop is not None or self.keep_share is not None


@dataclass
class FaultSpec(Checked):
    """`mas.faults`: time limits, retries, and the action after an act or a workflow fails."""

    then: Literal["drop_session", "fail_group"] = "drop_session"
    """Drop the failed session, or all sessions of its task."""

    retries: Annotated[int, Range(0, 100)] = 1
    """Further attempts at a session that failed."""

    backoff_s: NotNegative = 0.5
    """Seconds before the first retry; doubled before each further retry."""

    act_timeout_s: Positive = 600.0
    """Time limit in seconds for an act, without its tools and its waits for the time slice of its policy
    (`serving: phases`)."""

    session_timeout_s: Positive = 3600.0
    """Time limit in seconds for a session from its start. Its wait for a slot (`mas.max_sessions`) does not count."""

    max_acts: Count = 256
    """Maximum number of acts per session."""

    max_probe_acts: Count = 16384
    """Maximum number of probe acts per session. Probe acts only measure how candidates end, and do not count towards
    `max_acts`."""

    max_dropped_share: Share = 0.5
    """The run ends if a larger share of the sessions of a step, or of a validation, failed."""

    max_timeout_share: Share = 0.01
    """The run ends if a larger share of the sessions of a validation timed out, because the validation score would be
    too low."""


@dataclass
class TrajectorySpec:
    """Session records on disk."""

    enabled: bool = True
    """Whether sessions are written."""

    dir: str | None = None
    """null: <trainer.default_local_dir>/trajectories."""

    format: Literal["zst", "jsonl"] = "zst"
    """zst: the records are compressed into Parquet files when a step has ended. jsonl: they stay plain JSON lines."""

    sampling_rate: Share = 1.0
    """The share of sessions that is written, in addition to all sessions with a fault and to the best and the worst
    session of each group. At the same rate, every run selects the same sessions."""

    max_gib: Positive | None = 10.0
    """Maximum size of the folder in GiB; null: no limit. The sampling rate is halved when half of this size is used,
    and again whenever half of the remaining size is used."""

    tokens: bool = True
    """Whether records have the sampled tokens of acts, with log-probs."""

    max_text_chars: Count | None = None
    """Maximum length of a text in characters; longer texts are cut. null: no limit."""


@dataclass
class MasConfig:
    """The whole `mas:` block."""

    plugins: list[str] = field(default_factory=list)
    """Python files and modules that register workflows, estimators, puzzles, graders, executors, commit rules or
    engines. They are loaded before the checks, and again in every agent-loop worker and in the trainer."""

    workflow: WorkflowSpec = field(default_factory=WorkflowSpec)

    agents: dict[str, AgentSpec] = field(default_factory=dict)
    """Settings by the name or the role of an agent of the workflow."""

    policies: dict[str, PolicySpec] = field(default_factory=dict)
    """null or empty: one policy `main`, which is `actor_rollout_ref` without overrides."""

    pools: dict[str, PoolSpec] = field(default_factory=dict)
    """Sets of GPUs by name; `shared` always exists."""

    swap: SwapSpec = field(default_factory=SwapSpec)

    branch: BranchSpec = field(default_factory=BranchSpec)

    reward: RewardSpec = field(default_factory=RewardSpec)

    advantage: FreeSettings = field(default_factory=dict)
    """Options of the advantage estimator."""

    loss: LossSpec = field(default_factory=LossSpec)

    filter: FilterSpec = field(default_factory=FilterSpec)

    mcp: dict[str, McpSpec] = field(default_factory=dict)
    """Servers of tools by name. The tool `read` of the server `files` is `files_read` in `mas.agents.<name>.tools`."""

    faults: FaultSpec = field(default_factory=FaultSpec)

    max_sessions: Count | None = None
    """Sessions that run at once, divided equally among the agent-loop workers. Other sessions wait, first come, first
    served. null: the number of requests that the engines run at once (replicas x rollout.max_num_seqs; for policies on
    one pool, the largest number), divided by the candidates of a branch."""

    trajectories: TrajectorySpec = field(default_factory=TrajectorySpec)

    updates_per_step: Count | None = None
    """Optimiser steps per policy and training step, independent of the number of rows.
    null: data.train_batch_size / actor.ppo_mini_batch_size, as in verl with one row per session."""

    old_log_probs_every: Count = 10
    """With one optimiser step per training step and no rollout correction, the update itself computes the old
    log-probs. A separate pass, for the metrics that compare engine and trainer, then runs only once in this number of
    steps, and in the first two steps after a start or a resume. 1: in every step, as in verl."""

    skip_zero_advantage: Literal["auto"] | bool = "auto"
    """Leave rows with an advantage of exactly 0 out of the update; the loss is normalised as if they were in it. auto:
    only if nothing but rounding changes, that is, with one optimiser step per training step and neither entropy nor KL
    in the loss."""

    shared_prefixes: Literal["auto"] | bool | None = None
    """Compute common prefixes of rows only once in training. auto: if the model is supported and sharing saves work.
    true: refuse a model that is not supported. null: auto on the CPU, else false."""
