"""What a configuration amounts to, as plain values: `verl-mas check` shows them as a tree or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.model_folder import positions
from verl_mas.config.adapters import adapters
from verl_mas.config.capacity import sessions_at_once
from verl_mas.config.merge import (
    SECTION,
)
from verl_mas.config.placement import policies_on, pool_shape, serving_pool, used_pools
from verl_mas.config.run import Run, View
from verl_mas.config.schema import AgentSpec, RewardSpec, SnapshotSpec
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


def summary(run: Run) -> Summary:
    """Of a configuration without errors."""
    team, mas = run.mode is not None, run.mas
    checkpoint = to_resume(run.config) if team else None
    return Summary(
        trainer=run.config.trainer.v1.trainer_mode,
        mode=_mode(run),
        workflow=mas.workflow.name if team else None,
        on_cpu=run.config.trainer.device == CPU,
        agents={name: _agent(member) for name, member in agents_of(mas).items()} if team else {},
        policies={name: _policy(run.view(name)) for name in mas.policies},
        pools={name: _pool(run, name) for name in used_pools(mas)},
        step=_step(run),
        prompt_tokens=run.config.data.max_prompt_length,
        response_tokens=run.config.data.max_response_length,
        folder=str(run.config.trainer.default_local_dir),
        resumes_at=checkpoint.step if checkpoint else None,
    )


def _mode(run: Run) -> ModeSummary | None:
    mode, stale = run.mode, run.staleness
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


def _policy(view: View) -> PolicySummary:
    spec, mas, trained = view.spec, view.run.mas, view.spec.is_trained
    if spec.remote:
        return PolicySummary(spec.remote.model, spec.remote.base_url, None, None, None, None)
    model, engine = (str(view.value(key)) for key in ("model.path", "rollout.name"))
    return PolicySummary(
        model,
        engine,
        serving_pool(mas, view.name),
        float(view.value("actor.optim.lr")) if trained else None,
        view.updates_per_step if trained else None,
        _context(view),
        _snapshot(spec.snapshot) if spec.snapshot else None,
        _adapter(view, spec.adapter_of) if spec.adapter_of else None,
        adapters(mas, view.name),
        _correction(view.correction) if trained else None,
    )


def _correction(found: DictConfig) -> str | None:
    if found.get("bypass_mode"):
        return "bypass"
    names = [f"{found[key]} {found.get(f'{key}_threshold')}" for key in ("rollout_is", "rollout_rs") if found.get(key)]
    return ", ".join(names) or None


def _adapter(view: View, base: str) -> AdapterSummary:
    rank, alpha = (view.value(f"model.lora_{key}") for key in ("rank", "alpha"))
    return AdapterSummary(base, int(rank), float(alpha))


def _snapshot(snapshot: SnapshotSpec) -> str:
    first = f", first at {snapshot.first}" if snapshot.first else ""
    return f"of {snapshot.of} every {snapshot.every} steps{first}"


def _context(view: View) -> int | None:
    known = (positions(view.section("model")), view.get("rollout.max_model_len"))
    return min((tokens for tokens in known if isinstance(tokens, int)), default=None)


def _pool(run: Run, name: str) -> PoolSummary:
    shape = pool_shape(run, name)
    # As the user asked for it; in `mas` the choice is made.
    served = serving(Run.of(run.config) if run.mode else run, name)
    return PoolSummary(policies_on(run.mas, name), sum(shape), len(shape), served.way, served.reason)


def _step(run: Run) -> StepSummary:
    mas = run.mas if run.mode else None
    branches = mas is not None and resolve(mas.workflow).branches and mas.branch.k > 1
    return StepSummary(
        tasks=run.config.data.train_batch_size,
        sessions_per_task=run.config[SECTION].rollout.n,
        sessions=run.sessions_per_step,
        at_once=sessions_at_once(run) if mas else None,
        candidates=mas.branch.k if mas and branches else 1,
        commit=mas.branch.commit if mas and branches else None,
        estimator=str(OmegaConf.select(run.config, "algorithm.adv_estimator")),
        reward=_reward(mas.reward) if mas else None,
    )


def _reward(spec: RewardSpec) -> dict[str, object]:
    return {field.name: getattr(spec, field.name) for field in fields(RewardSpec)}
