"""What a configuration amounts to, as plain values: `verl-mas check` shows them as a tree or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.model_folder import positions
from verl_mas.config.adapters import adapters
from verl_mas.config.capacity import sessions_at_once
from verl_mas.config.load import load
from verl_mas.config.merge import (
    SECTION,
    correction,
    optional_policy_value,
    policy_section,
    policy_value,
    sessions_per_step,
    updates_per_step,
)
from verl_mas.config.modes import mode_of, staleness_of
from verl_mas.config.placement import policies_on, pool_shape, serving_pool
from verl_mas.config.schema import AgentSpec, MasConfig, PolicySpec, RewardSpec, SnapshotSpec
from verl_mas.engines.serving import serving
from verl_mas.platform import DEVICE as CPU
from verl_mas.run_folder.checkpoints import to_resume
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.members import Member


@dataclass(frozen=True)
class AgentSummary:
    policy: str
    trained: bool
    settings: Mapping[str, object]
    """Of the agent, where they differ from the defaults."""


@dataclass(frozen=True)
class AdapterSummary:
    base: str
    rank: int
    alpha: float


@dataclass(frozen=True)
class PolicySummary:
    """`learning_rate` and `optimiser_steps` are null for one that is not trained, `pool` for a remote one."""

    model: str
    engine: str
    pool: str | None
    learning_rate: float | None
    optimiser_steps: int | None
    context: int | None
    """Tokens; null for a model that is neither on this machine nor a known one."""

    snapshot: str | None = None
    """What it is a snapshot of, and when; null for another policy."""

    adapter: AdapterSummary | None = None
    """null for a policy with weights of its own."""

    adapters: Sequence[str] = ()
    """The policies that are adapters on its weights."""

    correction: str | None = None
    """Between the weights that wrote a row and those that are trained; null for none."""


@dataclass(frozen=True)
class PoolSummary:
    policies: Sequence[str]
    processes: int
    """One per GPU, or on the CPU."""

    nodes: int
    serving: str
    reason: str
    """Of `serving`."""


@dataclass(frozen=True)
class StepSummary:
    tasks: int
    sessions_per_task: int
    sessions: int
    """Also the rows of an agent that acts once per session."""

    at_once: int | None
    """Sessions that run at once; null without a team, whose sessions all run at once."""

    candidates: int
    """Per act that branches; 1 if the workflow does not branch."""

    commit: str | None
    estimator: str
    reward: Mapping[str, object] | None


@dataclass(frozen=True)
class ModeSummary:
    """The last three are null in the synchronous mode."""

    name: str
    warmup: float | None
    """W: steps between the dispatch of a task and the training on it."""

    threshold: int | None
    """T: versions of the weights that a group may be of."""

    strategy: str | None


@dataclass(frozen=True)
class Summary:
    """`workflow` is null without a team; the agents are then unknown, and the one policy is verl's model."""

    trainer: str
    mode: ModeSummary | None
    """null without a team."""

    workflow: str | None
    on_cpu: bool
    """Whether a process of a pool is a worker on the CPU, and not a GPU."""

    agents: Mapping[str, AgentSummary]
    policies: Mapping[str, PolicySummary]
    pools: Mapping[str, PoolSummary]
    step: StepSummary
    prompt_tokens: int
    response_tokens: int
    folder: str
    resumes_at: int | None
    """The step of the checkpoint that a team's run starts from."""


def summary(config: DictConfig, mas: MasConfig | None) -> Summary:
    """Of a configuration without errors."""
    team = load(None) if mas is None else mas
    checkpoint = to_resume(config) if mas else None
    return Summary(
        trainer=config.trainer.v1.trainer_mode,
        mode=_mode(config),
        workflow=mas.workflow.name if mas else None,
        on_cpu=config.trainer.device == CPU,
        agents={name: _agent(member) for name, member in agents_of(mas).items()} if mas else {},
        policies={name: _policy(config, team, name, spec) for name, spec in team.policies.items()},
        pools={name: _pool(config, team, name) for name in team.pools if policies_on(team, name)},
        step=_step(config, mas),
        prompt_tokens=config.data.max_prompt_length,
        response_tokens=config.data.max_response_length,
        folder=str(config.trainer.default_local_dir),
        resumes_at=checkpoint.step if checkpoint else None,
    )


def _mode(config: DictConfig) -> ModeSummary | None:
    mode, stale = mode_of(config), staleness_of(config)
    if mode is None:
        return None
    if stale is None:
        return ModeSummary(mode.name, None, None, None)
    return ModeSummary(mode.name, stale.warmup, stale.threshold, stale.strategy)


def _agent(member: Member) -> AgentSummary:
    default = AgentSpec()
    changed = {
        field.name: value
        for field in fields(AgentSpec)
        if (value := getattr(member.spec, field.name)) != getattr(default, field.name)
    }
    others = {name: value for name, value in changed.items() if name not in ("policy", "trainable")}
    policy = ", then ".join(member.policies)
    if member.rotation:
        policy += f" (each for {member.every} training steps)"
    return AgentSummary(policy, member.trainable, others)


def _policy(config: DictConfig, mas: MasConfig, name: str, spec: PolicySpec) -> PolicySummary:
    if spec.remote:
        return PolicySummary(spec.remote.model, spec.remote.base_url, None, None, None, None)
    model, engine = (str(policy_value(config, spec, key)) for key in ("model.path", "rollout.name"))
    return PolicySummary(
        model,
        engine,
        serving_pool(mas, name),
        float(policy_value(config, spec, "actor.optim.lr")) if spec.is_trained else None,
        updates_per_step(config, mas, name) if spec.is_trained else None,
        _context(config, spec),
        _snapshot(spec.snapshot) if spec.snapshot else None,
        _adapter(config, spec, spec.adapter_of) if spec.adapter_of else None,
        adapters(mas, name),
        _correction(config, spec) if spec.is_trained else None,
    )


def _correction(config: DictConfig, spec: PolicySpec) -> str | None:
    found = correction(config, spec)
    if found.get("bypass_mode"):
        return "bypass"
    names = [f"{found[key]} {found.get(f'{key}_threshold')}" for key in ("rollout_is", "rollout_rs") if found.get(key)]
    return ", ".join(names) or None


def _adapter(config: DictConfig, spec: PolicySpec, base: str) -> AdapterSummary:
    rank, alpha = (policy_value(config, spec, f"model.lora_{key}") for key in ("rank", "alpha"))
    return AdapterSummary(base, int(rank), float(alpha))


def _snapshot(snapshot: SnapshotSpec) -> str:
    first = f", first at {snapshot.first}" if snapshot.first else ""
    return f"of {snapshot.of} every {snapshot.every} steps{first}"


def _context(config: DictConfig, spec: PolicySpec) -> int | None:
    section = policy_section(config, spec, "model")
    known = (positions(section), optional_policy_value(config, spec, "rollout.max_model_len"))
    return min((tokens for tokens in known if isinstance(tokens, int)), default=None)


def _pool(config: DictConfig, mas: MasConfig, name: str) -> PoolSummary:
    shape = pool_shape(config, mas, name)
    # As the user asked for it; in `mas` the choice is made.
    served = serving(config, load(config.get("mas")), name)
    return PoolSummary(policies_on(mas, name), sum(shape), len(shape), served.way, served.reason)


def _step(config: DictConfig, mas: MasConfig | None) -> StepSummary:
    branches = mas is not None and resolve(mas.workflow).branches and mas.branch.k > 1
    return StepSummary(
        tasks=config.data.train_batch_size,
        sessions_per_task=config[SECTION].rollout.n,
        sessions=sessions_per_step(config),
        at_once=sessions_at_once(config, mas) if mas else None,
        candidates=mas.branch.k if mas and branches else 1,
        commit=mas.branch.commit if mas and branches else None,
        estimator=str(OmegaConf.select(config, "algorithm.adv_estimator")),
        reward=_reward(mas.reward) if mas else None,
    )


def _reward(spec: RewardSpec) -> dict[str, object]:
    return {field.name: getattr(spec, field.name) for field in fields(RewardSpec)}
