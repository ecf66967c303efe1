"""Whether a run of these settings can learn: rows to compare, agents that are trained, rewards, and acts to spend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from verl_mas.advantage import ESTIMATORS
from verl_mas.checks.estimators import check_estimator
from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.gateway.program import Program
from verl_mas.workflow.base import Workflow
from verl_mas.workflow.members import DECODING, Member, flat


def check_learning(run: Run, workflow: Workflow, members: Mapping[str, Member]) -> Iterator[Problem]:
    mas, faults, branching = run.mas, run.mas.faults, workflow.branches and run.mas.branch.k > 1
    yield from combinations(
        "workflow",
        run.config,
        mas=mas,
        workflow=workflow,
        agents=len(members),
        index_here="://" not in str(getattr(workflow, "retriever", "://")),
        tooled=next((one.role for one in members.values() if one.spec.tools and isinstance(workflow, Program)), None),
        longest=max(workflow.most_acts(k) or 0 for k in (mas.branch.k, mas.branch.validation_k)),
        wait=faults.backoff_s * 2.0 ** (faults.retries - 1) if faults.retries else 0.0,
    )
    if run.config.trainer.val_only:
        return
    estimator = ESTIMATORS[name] if (name := str(run.config.algorithm.adv_estimator)) in ESTIMATORS else None
    penalised = [name for name, spec in mas.agents.items() if spec.format_penalty]
    yield from combinations(
        "learning",
        run.config,
        mas=mas,
        workflow=workflow,
        estimator=estimator,
        scale=estimator and estimator.defaults.get("scale"),
        remembers=estimator is not None and (estimator.remembers or mas.advantage.get("shrinkage") is not None),
        candidates=mas.branch.k if branching else 1,
        penalised=penalised and " and ".join(penalised),
        penalties=bool(penalised and mas.reward.penalty_on != "none" and mas.advantage.get("penalty_weight") != 0),
        greedy=_validated_greedily(run, members),
        plays_on=workflow.branches and bool(workflow.probes or workflow.forks),
    )
    if estimator and any(member.trainable for member in members.values()):
        sessions = int(run.config.actor_rollout_ref.rollout.n)
        yield from check_estimator(mas, estimator, members, sessions, mas.branch.k if branching else 1)
    yield from _trained_agents(run, members, workflow.never_trained)
    for name, member in members.items():
        if member.trainable and member.spec.policy in mas.policies:
            view, own = run.view(member.spec.policy), flat(member.spec.sampling)
            drawn = {key: own.get(key, view.value(f"rollout.{key}")) for key in DECODING}
            drawn |= {key: own.get(key) for key in ("min_p", "seed")}
            whose = f"agent {name} is trained with "
            yield from combinations("decoding", run.config, whose, **drawn, role=member.role)
    for name in run.trained:
        view, acting = run.view(name), [one for one in members.values() if one.trainable and name in one.policies]
        different = {one.spec.sampling.get("temperature", view.value("rollout.temperature")) for one in acting}
        yield from combinations("fused", view.config, f"policy {name}: ", temperatures=len(different))


def _trained_agents(run: Run, members: Mapping[str, Member], never: Sequence[str]) -> Iterator[Problem]:
    acting = [member for name, member in members.items() if member.trainable and name not in never]
    learning = {policy for member in acting for policy in member.policies}
    idle = [name for name in run.trained if name not in learning]
    if idle and not learning:
        value = "mas.agents: every agent has trainable=false"
        rule = "training needs an agent whose rows are trained on"
        yield ConfigError(value, rule=rule, fix="set ++mas.agents.<agent>.trainable=true, or trainer.val_only=True")
        return
    for name in idle:
        of_workflow = "" if not never else f" or is one whose acts are never trained on ({', '.join(never)})"
        value = f"mas.policies.{name}: every agent on it has trainable=false{of_workflow}"
        reason = "the policy is never updated, and still uses memory for its optimiser"
        yield ConfigWarning(value, reason=reason, fix=f"set ++mas.policies.{name}.trainable=false")


def _validated_greedily(run: Run, members: Mapping[str, Member]) -> bool:
    """verl's validation is greedy unless its temperature is set, whatever `do_sample` is."""
    learning = [one for one in members.values() if one.trainable and one.spec.policy in run.mas.policies]
    common = {one.name: run.view(one.spec.policy).value("rollout.val_kwargs.temperature") for one in learning}
    return {flat(one.spec.validation_sampling).get("temperature", common[one.name]) for one in learning} == {0}
