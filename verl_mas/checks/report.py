"""The problems that the checks found, and a summary of the run. `verl-mas check` shows both, as text or as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from omegaconf import DictConfig

from verl_mas.checks.doctor import Aspect
from verl_mas.checks.examined import ExaminedRun
from verl_mas.config.adapters import adapters
from verl_mas.config.merge import SECTION
from verl_mas.config.placement import policies_on, pool_shape, serving_pool, sessions_at_once, used_pools
from verl_mas.config.run import Run, View
from verl_mas.config.schema import AgentSpec
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.engines.serving import serving
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.model_folder import model_number
from verl_mas.run_folder.checkpoints import to_resume
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.codecs import JsonObject

# Nested plain values by name. A value that the run lacks is null, such as the workflow of a run without a team.
Summary: TypeAlias = JsonObject


@dataclass(frozen=True)
class CheckReport:
    """Result of a check. `summary` is None if there are errors."""

    errors: Sequence[ConfigError] = ()
    warnings: Sequence[ConfigWarning] = ()
    machine: Sequence[Aspect] = ()
    summary: Summary | None = None
    settled: Sequence[str] = ()  # Settings that the plugin chose for the team, one line each

    @property
    def accepted(self) -> bool:
        return not self.errors

    @property
    def verdict(self) -> str:
        """Verdict, such as `accepted`, `accepted with 2 warnings` or `refused: 3 errors, 1 warning`."""
        errors, warnings = _count(self.errors, "error"), _count(self.warnings, "warning")
        if self.errors:
            return f"refused: {errors}, {warnings}" if self.warnings else f"refused: {errors}"
        return f"accepted with {warnings}" if self.warnings else "accepted"

    @property
    def problems(self) -> str:
        """Every error and warning, and the verdict."""
        errors = [f"error: {error}" for error in self.errors]
        settled = [f"set: {line}" for line in self.settled]
        return "\n".join([*settled, *errors, *(f"warning: {warning}" for warning in self.warnings), self.verdict])

    def found(self) -> dict[str, object]:
        """The verdict and its reasons, for JSON."""
        return {
            "verdict": self.verdict,
            "accepted": self.accepted,
            "errors": [{"value": error.value, "rule": error.rule, "fix": error.fix} for error in self.errors],
            "warnings": [asdict(warning) for warning in self.warnings],
            "settled": list(self.settled),
        }


def _count(found: Sequence[object], noun: str) -> str:
    return f"{len(found)} {noun}" if len(found) == 1 else f"{len(found)} {noun}s"


def summary(run: ExaminedRun, training: Mapping[str, str]) -> Summary:
    """Summarize a configuration without errors. `training`: the training path of each policy."""
    config, mas, team = run.config, run.mas, run.mode is not None
    checkpoint = to_resume(config) if team else None
    return {
        "trainer": config.trainer.v1.trainer_mode,
        "mode": _mode(run),
        "workflow": mas.workflow.name if team else None,
        # Whether the worker processes of the pools run on the CPU instead of GPUs.
        "on_cpu": config.trainer.device == CPU,
        "agents": {name: _agent(agent) for name, agent in run.agents.items()},
        "policies": {name: {**_policy(run.view(name)), "training": training.get(name)} for name in mas.policies},
        "pools": {name: _pool(run, name) for name in used_pools(mas)},
        "step": _step(run),
        "prompt_tokens": config.data.max_prompt_length,
        "response_tokens": config.data.max_response_length,
        "folder": str(config.trainer.default_local_dir),
        "saved_every": max(0, config.trainer.save_freq),  # Steps; 0: never
        # The step of the checkpoint that a team's run starts from.
        "resumes_at": checkpoint.step if checkpoint else None,
    }


def _mode(run: Run) -> Summary | None:
    """Return the mode and its staleness settings (warmup, threshold, strategy), which are null in the synchronous mode.

    A run without a team has no mode, so the result is None.
    """
    late = asdict(run.staleness) if run.staleness else dict.fromkeys(("warmup", "threshold", "strategy"))
    return {"name": run.mode.name, **late} if run.mode else None


def _agent(agent: ResolvedAgent) -> Summary:
    """Describe an agent. `settings` has only settings that differ from the defaults."""
    default = vars(AgentSpec())
    changed = {name: value for name, value in vars(agent.spec).items() if value != default[name]}
    others = {name: value for name, value in changed.items() if name not in ("policy", "trainable")}
    policy = ", then ".join(agent.policies)
    if agent.rotation:
        policy += f" (each for {agent.every} training steps)"
    return {"policy": policy, "trained": agent.trainable, "settings": others}


def _policy(view: View) -> Summary:
    spec, mas, trained = view.spec, view.run.mas, view.spec.is_trained
    remote, snapshot = spec.remote, spec.snapshot
    first = f", first at {snapshot.first}" if snapshot and snapshot.first else ""
    rank, alpha = (view.get(f"model.lora_{key}") for key in ("rank", "alpha"))
    adapter = {"base": spec.adapter_of, "rank": rank, "alpha": alpha}
    return {
        "model": remote.model if remote else str(view.value("model.path")),
        "engine": remote.base_url if remote else view.engine,
        "pool": None if remote else serving_pool(mas, view.name),
        "trained": trained,
        "learning_rate": float(view.value("actor.optim.lr")) if trained else None,
        "optimiser_steps": view.updates_per_step if trained else None,
        # Tokens; null if the context length of the model is unknown and rollout.max_model_len is not set.
        "context": None if remote else _context(view),
        "snapshot": f"of {snapshot.of} every {snapshot.every} steps{first}" if snapshot else None,
        "adapter": adapter if spec.adapter_of else None,
        # The policies that are adapters on the weights of this policy.
        "adapters": adapters(mas, view.name),
        "correction": _correction(view.correction) if trained else None,
    }


def _correction(found: DictConfig) -> str | None:
    """Name the corrections for rows that were sampled with older weights."""
    if found.get("bypass_mode"):
        return "bypass"
    names = [f"{found[key]} {found.get(f'{key}_threshold')}" for key in ("rollout_is", "rollout_rs") if found.get(key)]
    return ", ".join(names) or None


def _context(view: View) -> int | None:
    known = (model_number(view.section("model"), "max_position_embeddings"), view.get("rollout.max_model_len"))
    return min((tokens for tokens in known if isinstance(tokens, int)), default=None)


def _pool(run: ExaminedRun, name: str) -> Summary:
    """Describe a pool. `processes`: the number of its worker processes, one per GPU in a run on GPUs."""
    shape = pool_shape(run, name)
    served = serving(run.asked, name)
    return {
        "policies": policies_on(run.mas, name),
        "processes": sum(shape),
        "nodes": len(shape),
        "serving": served.way,
        "reason": served.reason,
    }


def _step(run: ExaminedRun) -> Summary:
    """Describe a training step. An agent that acts once per session has `sessions` rows. `at_once` is null without a
    team, because all sessions then run at once."""
    mas = run.mas if run.mode else None
    return {
        "tasks": run.config.data.train_batch_size,
        "sessions_per_task": run.config[SECTION].rollout.n,
        "sessions": run.sessions_per_step,
        "at_once": sessions_at_once(run) if mas else None,
        "candidates": run.candidates,
        "commit": run.mas.branch.commit if run.candidates > 1 else None,
        "estimator": str(run.get("algorithm.adv_estimator")),
        "reward": asdict(mas.reward) if mas else None,
    }
