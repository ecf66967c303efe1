"""The `mas:` block: types, meaning and ranges. Values are in YAML; this module loads neither torch nor ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from verl_mas.config.mcp import McpSpec
from verl_mas.config.sampling import Sampling
from verl_mas.config.values import (
    Above,
    Checked,
    Count,
    NotNegative,
    Positive,
    Range,
    Share,
    Text,
)
from verl_mas.errors import ConfigError
from verl_mas.verl_.types import Fields

# Settings by the names of verl, an engine, a chat template or a workflow.
FreeSettings: TypeAlias = Fields
Weighting: TypeAlias = Literal["row", "agent", "agent_token", "session", "token"]
# The policy of a run that names none, and the pool of a policy that names none.
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
    """Seconds that loading the files of the user, and the workflow's `check`, may take before a run starts."""


@dataclass
class AgentSpec(Checked):
    """`mas.agents.<name>`: settings of an agent, or of all agents of a role."""

    policy: str = DEFAULT_POLICY
    """The policy of `mas.policies` that generates its replies."""

    role: str | None = None
    """Agents of one role share settings; `ensemble` has `reasoner_0..N` of role `reasoner`."""

    system_prompt: str | None = None
    """Replaces the system prompt of the workflow."""

    sampling: Sampling = field(default_factory=Sampling)
    """Merged over the rollout's sampling settings. In validation temperature, top_p and top_k stay those of
    `rollout.val_kwargs`, unless `validation_sampling` sets them."""

    validation_sampling: Sampling = field(default_factory=Sampling)
    """Merged over `sampling` in validation."""

    tools: list[str] = field(default_factory=list)
    """Names of the tools that it may call: those of rollout.multi_turn.tool_config_path and function_tool_path, and of
    the servers of `mas.mcp`."""

    tool_timeout_s: Positive = 60.0
    """Seconds that a call of a tool may take; they are no part of the act's `mas.faults.act_timeout_s`."""

    max_tool_rounds: Count = 16
    """How often an act may call tools and generate again. An act that calls more ends."""

    max_tool_calls: Count = 64
    """Calls per act. Further ones are answered with an error."""

    chat_template_kwargs: FreeSettings = field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking`."""

    max_prompt_length: Count | None = None
    """Tokens, at most data.max_prompt_length. null: as many."""

    truncation: Literal["error", "drop_oldest", "middle"] = "error"
    """What to do with a longer prompt: fail, drop the oldest messages, or cut out the middle."""

    format_penalty: NotNegative = 0.0
    """Subtracted from the score of an act whose reply was malformed."""

    trainable: bool = True
    """false: its rows are left out of the loss, also if its policy is trained."""


@dataclass
class SwapSpec(Checked):
    """`mas.swap`: agents that exchange their policies during training, as in CORY."""

    agents: list[str] = field(default_factory=list)
    """Two agents on a policy each, or more, which pass theirs around. Validation is with the policies that the agents
    are configured with. Empty: none."""

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
    """Seconds that a request may take."""

    concurrency: Count = 256
    """Connections per rollout worker."""


@dataclass
class SnapshotSpec(Checked):
    """`mas.policies.<name>.snapshot`: an earlier state of a trained policy, such as an opponent in self-play."""

    of: Text
    """The trained policy whose weights it takes. It starts with the same weights."""

    every: Count
    """Steps between two refreshes."""

    first: Count | None = None
    """The step of the first refresh. null: `every`. K snapshots that are refreshed in turn (every: K * N, first: N,
    2 * N, ...) are the last K states."""

    def due(self, step: int) -> bool:
        """Whether it takes the weights that its policy has after this step."""
        first = self.first or self.every
        return step >= first and (step - first) % self.every == 0


@dataclass
class PolicySpec:
    """One LLM with its weights."""

    trainable: bool = True
    """false: served from its model path, never updated, without optimiser memory."""

    snapshot: SnapshotSpec | None = None
    """It has the weights of a trained policy at an earlier step, and that policy's overrides of model and rollout."""

    pool: str = DEFAULT_POOL
    """The pool of `mas.pools` whose GPUs it uses."""

    remote: RemoteSpec | None = None
    """An endpoint that serves the policy. A remote policy is never trained and uses no GPU of the run."""

    adapter_of: str | None = None
    """A LoRA adapter on the weights of this policy, its base, which is never trained. One that is left out is added."""

    engines: str | None = None
    """The pool whose GPUs serve it while it is trained on those of `pool`, in trainer mode mas_separate_async. null for
    all policies: one pool, `serve`."""

    updates_per_step: Count | None = None
    """Optimiser steps per training step. null: `mas.updates_per_step`."""

    shared_prefixes: Literal["auto"] | bool | None = None
    """null: `mas.shared_prefixes`. An adapter takes that of its base."""

    rollout_correction: FreeSettings = field(default_factory=dict)
    """Merged over `algorithm.rollout_correction`, of a policy that is trained."""

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
        """Whether it has an optimiser; a remote policy and a snapshot have none."""
        return self.trainable and self.remote is None and self.snapshot is None


@dataclass
class PoolSpec:
    """A set of GPUs."""

    nnodes: Count | None = None
    """Nodes. null: trainer.nnodes for the pool `shared`, else 1."""

    n_gpus_per_node: Count | None = None
    """GPUs per node. null: trainer.n_gpus_per_node."""

    serving: Literal["auto", "together", "phases"] = "auto"
    """Engines of the pool: all awake together, which share the GPU's memory, or woken in phases, one policy at a time.
    auto: together where the memory fractions add up to at most 0.85 and a replica has one GPU, else phases."""

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

    A preset sets the three values below as a paper does; a value that is set overrides it.
    sum: 1, 1, act. dr_mas: 1, 0, act. sparse: 1, 0, none. at_grpo: 1, 1, none (the local reward has its format term).
    """

    preset: Literal["sum", "dr_mas", "at_grpo", "sparse"] = "sum"
    """The values of the three settings below that are null."""

    team: float | None = None
    """Weight of the session's reward."""

    local: float | None = None
    """Weight of the act's own reward."""

    penalty_on: Literal["act", "agent", "session", "none"] | None = None
    """The rows that get the penalty of a malformed act: that act, all of its agent, or all of the session."""

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
    """The loss of each policy. The weighting of statistics is `mas.advantage.weighting`."""

    weighting: Weighting | None = None
    """What counts equally in the loss of a policy: every token, every row, every agent (and in it every row; with
    agent_token every token), or every session (and in it every row). The tokens of a row count equally. null: verl's
    actor.loss_agg_mode, of which a mean over tokens depends on which rows share an optimiser step."""


@dataclass
class FilterSpec(Checked):
    """`mas.filter`: the tasks of a step that are trained on. A task is kept or left out with all of its sessions."""

    drop: Literal["uniform"] | None = None
    """uniform: leave out tasks of which no trained row has an advantage, as every group is uniform (DAPO)."""

    by: Literal["score", "team", "acc"] = "score"
    """What is uniform. score: rows' scores, in the groups of the estimator, so that one penalty or own reward keeps a
    task. team: the team's rewards of the task's sessions. acc: their accuracies, as DAPO's code compares them."""

    keep_share: Annotated[float, Above(0), Range(high=1)] | None = None
    """Keep this share of the tasks: those whose sessions differ most in the team's reward, by standard deviation
    (StarPO-S). null: all."""

    refill: bool = False
    """Sample further tasks until data.train_batch_size are kept. false: train on what is left."""

    max_rounds: Annotated[int, Range(2, 1000)] = 10
    """With refill: rounds of sampling per step at most, the first included."""

    @property
    def active(self) -> bool:
        return self.drop is not None or self.keep_share is not None


@dataclass
class FaultSpec(Checked):
    """`mas.faults`: what happens to a session when an act or the workflow fails."""

    then: Literal["drop_session", "fail_group"] = "drop_session"
    """Drop the failed session, or all sessions of its task."""

    retries: Annotated[int, Range(0, 100)] = 1
    """Further attempts at a session that failed."""

    backoff_s: NotNegative = 0.5
    """Seconds before the first retry; doubled before each further one."""

    act_timeout_s: Positive = 600.0
    """Seconds that an act may take, without its tools and its waits for the time slice of its policy
    (`serving: phases`)."""

    session_timeout_s: Positive = 3600.0
    """Seconds that a session may take from its start, which may be after others ended (`mas.max_sessions`)."""

    max_acts: Count = 256
    """Acts per session at most."""

    max_probe_acts: Count = 16384
    """Acts per session at most that only tell how candidates end; they are not counted in `max_acts`."""

    max_dropped_share: Share = 0.5
    """The run ends if a larger share of the sessions of a step, or of a validation, failed."""

    max_timeout_share: Share = 0.01
    """The run ends if a larger share of the sessions of a validation timed out: its score would be too low."""


@dataclass
class TrajectorySpec:
    """Session records on disk."""

    enabled: bool = True
    """Whether sessions are written."""

    dir: str | None = None
    """null: <trainer.default_local_dir>/trajectories."""

    format: Literal["zst", "jsonl"] = "zst"
    """zst: compressed Parquet files when a step has ended. jsonl: plain lines."""

    sampling_rate: Share = 1.0
    """The share of sessions that is written, beside all with a fault and the best and the worst of each group; the same
    sessions in every run."""

    max_gib: Positive | None = 10.0
    """The size of the folder at most, null: any. The sampling rate is halved when half of it is used, and again
    whenever half of the rest is."""

    tokens: bool = True
    """Whether acts have their sampled tokens one by one, with log-probs."""

    max_text_chars: Count | None = None
    """Longer texts are cut to this length."""


@dataclass
class MasConfig:
    """The whole `mas:` block."""

    plugins: list[str] = field(default_factory=list)
    """Python files and modules that register workflows, estimators, puzzles, graders, executors, commit rules or
    engines. Loaded before the checks, in every agent-loop worker and in the trainer."""

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
    """Sessions that run at once, divided equally over the agent-loop workers; the others wait, first come, first
    served. null: as many requests as the engines run at once (replicas x rollout.max_num_seqs, of the policies on one
    pool the largest), divided by the candidates of a branch."""

    trajectories: TrajectorySpec = field(default_factory=TrajectorySpec)

    updates_per_step: Count | None = None
    """Optimiser steps per policy and training step, whatever the number of rows.
    null: data.train_batch_size / actor.ppo_mini_batch_size, as verl has with one row per session."""

    old_log_probs_every: Count = 10
    """With one optimiser step per training step and no rollout correction, the old log-probs are those of the update
    itself. The trainer then computes them in a pass of their own only every so many steps, and in the first two steps
    after a start or a resume, for the metrics that compare engine and trainer. 1: in every step, as verl does."""

    skip_zero_advantage: Literal["auto"] | bool = "auto"
    """Leave rows of exactly zero advantage out of the update; the loss is normalised as if they were in it. auto: where
    this changes nothing but rounding: with one optimiser step per training step, without entropy and KL in the loss."""

    shared_prefixes: Literal["auto"] | bool | None = None
    """Compute in training what rows begin with alike once. auto: where the model is covered and it is less work. true:
    a model that is not covered is refused. null: auto on the CPU, else false."""
